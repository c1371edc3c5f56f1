// The threads of a step that an instrument looks at: the one that begins it, and those that its
// backward passes use, since torch hands the state of a thread on to them. Ops of other threads are
// none of the step (D50).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/torch_private.h"

namespace habana_mp::watch {

// A new step on this thread: its number, never 0.
inline std::uint64_t begin_step() {
  static std::atomic<std::uint64_t> steps{0};
  const std::uint64_t step = ++steps;
  torch_private::mark_thread(step, true);
  return step;
}

// On another thread than it began on it does nothing: the number is not given again.
inline void end_step(std::uint64_t step) { torch_private::mark_thread(step, false); }

inline bool in_step(std::uint64_t step) { return step != 0 && torch_private::is_marked(step); }

}  // namespace habana_mp::watch
