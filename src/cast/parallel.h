// Casts on torch's own threads, and the sizes from which other threads are worth it.
#pragma once

#include <ATen/Parallel.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/cast_strided.h"

namespace habana_mp {

// A share of elements that is worth a thread: torch's own grain.
inline constexpr std::int64_t kGrain = 1 << 15;

// Below so many elements a cast is over sooner than other threads could take the GIL.
inline constexpr std::int64_t kReleaseGilAbove = 1 << 16;

namespace parallel_detail {

// Set in a process that was forked from one that had this module. It has none of the threads of its
// parent; those of OpenMP it would wait for, for ever.
inline std::atomic<bool> forked{false};
inline const int notices_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace parallel_detail

// at::parallel_for, on one thread in a forked process.
template <typename Share>
void in_parallel(std::int64_t begin, std::int64_t end, std::int64_t grain, const Share& share) {
  if (end - begin <= grain || parallel_detail::forked.load(std::memory_order_relaxed)) {
    share(begin, end);
  } else {
    at::parallel_for(begin, end, grain, share);
  }
}

// Parts of a loop, each with a result of its own, added in their order.
template <typename Result, typename Part>
Result added_in_parallel(std::int64_t count, const Part& part) {
  const std::int64_t parts = std::max<std::int64_t>(1, (count + kGrain - 1) / kGrain);
  std::vector<Result> results(static_cast<std::size_t>(parts));
  in_parallel(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      results[static_cast<std::size_t>(i)] = part(i * kGrain, std::min(count, (i + 1) * kGrain));
    }
  });
  Result all = results.front();
  for (std::size_t i = 1; i < results.size(); ++i) all.add(results[i]);
  return all;
}

inline void run_in_parallel(const kernels::StridedCast& cast, const void* source, void* target,
                            kernels::Stores stores) {
  in_parallel(0, static_cast<std::int64_t>(cast.pieces()), static_cast<std::int64_t>(cast.grain()),
              [&](std::int64_t begin, std::int64_t end) {
                cast.run(source, target, static_cast<std::size_t>(begin),
                         static_cast<std::size_t>(end), stores);
              });
}

}  // namespace habana_mp
