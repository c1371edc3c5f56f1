// The clock of the report, and the time that is not counted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/process_wide.h"

namespace habana_mp {

inline std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// What instruments take for themselves is no time of a step: second runs, what they compare and
// keep.
struct AsideTime {
  std::atomic<std::uint64_t> ns{0};  // in which at least one thread was aside
  std::atomic<unsigned> alive{0};    // how many Asides
  std::atomic<std::uint64_t> began{0};
};

inline std::uint64_t aside_ns() { return process_wide<AsideTime>().ns.load(); }

// While one lives, on whatever thread, its thread works for an instrument. They nest.
class Aside {
 public:
  Aside() {
    auto& time = process_wide<AsideTime>();
    if (time.alive++ == 0) time.began = now_ns();
  }
  ~Aside() {
    auto& time = process_wide<AsideTime>();
    const std::uint64_t began = time.began;
    if (--time.alive == 0) time.ns += now_ns() - began;
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
};

}  // namespace habana_mp
