// The clock of the report.
#pragma once

#include <chrono>
#include <cstdint>

namespace habana_mp {

inline std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace habana_mp
