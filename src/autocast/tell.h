// Tells the cast log and the report of a call that autocast decides. Called only while one of them
// is on.
#pragma once

#include "policy/policy.h"
#include "torch/autocast_kernel.h"
#include "torch/autocast_op.h"
#include "torch/observer.h"

namespace habana_mp::autocast {

// Takes the GIL, and nothing where the log is off. Throws what its writer throws.
void log_call(const Op& op, const Policy& policy, const Call& call, const Decision& decision,
              bool casting);

// Begins to watch the call where a report is open, and ends it when its results are on the stack.
void watch_call(observer::Watch& watch, const Op& op, const Rules& rules, const Call& call,
                const Decision& decision);
void end_watch(observer::Watch& watch, const Call& call);

}  // namespace habana_mp::autocast
