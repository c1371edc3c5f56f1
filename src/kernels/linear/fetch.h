// What walks over a weight fetch on their way, so that memory and products take their time
// together. As in blocks.h all here is local to the file that includes it.
#pragma once

#include <cstddef>

namespace habana_mp::kernels {
namespace {

// Cache lines for each step of a walk: all walks over a chunk together fetch the next one.
constexpr std::size_t lines_to_fetch(std::size_t walks) {
  return walks == 1 ? 4 : walks < 4 ? 2 : 1;
}

// A walk that goes through a whole sum needs its lines soon: they go to the L1 cache. The next
// chunk goes to the L2 cache, which waits for more lines at once: on a Zen 4 the product of 8 rows
// and int8 (bfloat16) reads its weight at 25 GB/s (25), and by the L1 cache at 14 (16).
template <std::size_t kWalks>
[[gnu::always_inline]] inline void fetch(const void* line) {
  __builtin_prefetch(line, 0, kWalks == 1 ? 3 : 2);
}

}  // namespace
}  // namespace habana_mp::kernels
