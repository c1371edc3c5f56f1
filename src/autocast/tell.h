// Tells the cast log and the report of a call that autocast decides. Called only while one of them
// is on.
#pragma once

#include "policy/policy.h"
#include "autocast/kernel.h"
#include "autocast/call.h"
#include "watch/observer.h"

namespace habana_mp::autocast {

// Takes the GIL, and nothing where the log is off. Throws what its writer throws.
void log_call(const Op& op, const Policy& policy, const Call& call, const Decision& decision,
              bool casting);

// Begins to watch the call where a report is open, and ends it when its results are on the stack.
void watch_call(watch::Watch& watch, const Op& op, const Rules& rules, const Call& call,
                const Decision& decision);
void end_watch(watch::Watch& watch, const Call& call);

}  // namespace habana_mp::autocast
