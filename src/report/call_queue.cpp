#include "report/call_queue.h"

#include <utility>

namespace habana_mp::report {

void CallQueue::ended(const Call& call, const Site& site) {
  if (calls_.size() == kMostCalls) {
    ++lost_;
    return;
  }
  calls_.push_back({.site = site,
                    .ns = call.ns,
                    .input_dtypes = call.input_dtypes,
                    .ran = call.ran,
                    .casts = {call.casts.begin(), call.casts.end()},
                    .first_node = call.first_node,
                    .last_node = call.last_node});
}

std::vector<EndedCall> CallQueue::take() { return std::exchange(calls_, {}); }

}  // namespace habana_mp::report
