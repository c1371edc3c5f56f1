// Notifies the listeners of a call that autocast decides. Called only while there are any.
#pragma once

#include "autocast/call.h"
#include "autocast/catalogue.h"
#include "listen/watched_call.h"
#include "policy/decide.h"
#include "scope/state.h"

namespace habana_mp::autocast {

constexpr listen::FrontEnd front_end_of(bool of_conversion) {
  return of_conversion ? listen::FrontEnd::Convert : listen::FrontEnd::Autocast;
}

struct DecidedCall {
  const Op& op;
  const Rules& rules;
  const Call& call;
  const Decision& decision;
  bool casting;
};

// Throws what a listener throws.
void notify_begin(listen::WatchedCall& watched, const DecidedCall& call);
// Its results are on the stack.
void notify_end(listen::WatchedCall& watched, const Call& call);

}  // namespace habana_mp::autocast
