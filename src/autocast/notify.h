// Notifies the listeners of a call that autocast decides. Called only while there are any.
#pragma once

#include "autocast/call.h"
#include "autocast/catalogue.h"
#include "policy/decide.h"
#include "scope/rules.h"
#include "watch/observer.h"

namespace habana_mp::autocast {

constexpr report::FrontEnd front_end_of(bool of_conversion) {
  return of_conversion ? report::FrontEnd::Convert : report::FrontEnd::Autocast;
}

struct DecidedCall {
  const Op& op;
  const Rules& rules;
  const Call& call;
  const Decision& decision;
  bool casting;
};

// Throws what a listener throws.
void notify_begin(watch::WatchedCall& watched, const DecidedCall& call);
// Its results are on the stack.
void notify_end(watch::WatchedCall& watched, const Call& call);

}  // namespace habana_mp::autocast
