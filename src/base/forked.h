// Whether this process was forked from one that had this module.
#pragma once

#include <atomic>

namespace habana_mp {

namespace forked_detail {
inline std::atomic<bool> forked{false};
}

// Such a process has none of the threads of its parent. Those of OpenMP it waits for, for ever.
inline bool is_forked() { return forked_detail::forked.load(std::memory_order_relaxed); }

// Once, while the module loads.
void notice_forks();

}  // namespace habana_mp
