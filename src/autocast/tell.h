// Tells those who listen of a call that autocast decides. Called only while somebody does.
#pragma once

#include "autocast/call.h"
#include "autocast/catalogue.h"
#include "policy/decide.h"
#include "scope/rules.h"
#include "watch/observer.h"

namespace habana_mp::autocast {

struct DecidedCall {
  const Op& op;
  const Rules& rules;
  const Call& call;
  const Decision& decision;
  bool casting;
};

// Throws what a listener throws.
void tell(watch::WatchedCall& watched, const DecidedCall& call);
// Its results are on the stack.
void tell_end(watch::WatchedCall& watched, const Call& call);

}  // namespace habana_mp::autocast
