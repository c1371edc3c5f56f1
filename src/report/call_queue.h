// A listener that keeps calls, as they ended, until somebody takes them: how Python listens. It
// never runs Python while an op runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "report/listening.h"

namespace habana_mp::report {

struct EndedCall {
  Site site;
  std::uint64_t ns;
  unsigned input_dtypes;
  unsigned ran;
  std::vector<Cast> casts;
  std::uint64_t first_node;
  std::uint64_t last_node;
};

class CallQueue final : public Listener {
 public:
  static constexpr std::size_t kMostCalls = 1 << 16;

  CallQueue() : Listener(Hears::Calls) {}

  void ended(const Call& call, const Site& site) override {
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

  // Those since the last time, under the observer's lock. Beyond kMostCalls none is kept.
  std::vector<EndedCall> take() { return std::exchange(calls_, {}); }
  // How many were not kept, in all. Without the lock.
  std::uint64_t lost() const { return lost_; }

 private:
  std::vector<EndedCall> calls_;
  std::atomic<std::uint64_t> lost_ = 0;
};

}  // namespace habana_mp::report
