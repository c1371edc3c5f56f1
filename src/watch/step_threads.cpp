#include "watch/step_threads.h"

#include <atomic>

#include "base/torch_private.h"

namespace habana_mp::watch {

std::uint64_t begin_step() {
  static std::atomic<std::uint64_t> steps{0};
  const std::uint64_t step = ++steps;
  torch_private::mark_thread(step, true);
  return step;
}

void end_step(std::uint64_t step) { torch_private::mark_thread(step, false); }

bool in_step(std::uint64_t step) { return step != 0 && torch_private::is_marked(step); }

}  // namespace habana_mp::watch
