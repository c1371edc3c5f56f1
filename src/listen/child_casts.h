// The casts of processes that were forked from this one, such as the workers of a data loader. No
// listener here hears of them; that there are some is counted in memory that a fork shares.
#pragma once

#include <atomic>
#include <cstdint>

namespace habana_mp::listen {

// Null in a process that was not forked from one that had this module.
inline std::atomic<std::atomic<std::uint64_t>*> casts_for_parent{nullptr};

// With each cast, heard or not.
inline void count_in_parent() {
  if (auto* count = casts_for_parent.load(std::memory_order_relaxed)) count->fetch_add(1);
}

// Since the module was loaded, or since this process was forked.
std::uint64_t casts_of_children();

}  // namespace habana_mp::listen
