// The threads of a step that an instrument looks at: the one that begins it, and those that its
// backward passes use, since torch hands the state of a thread on to them. Ops of other threads are
// none of the step (D50).
#pragma once

#include <cstdint>

namespace habana_mp::watch {

// A new step on this thread: its number, never 0.
std::uint64_t begin_step();
// On another thread than it began on it does nothing: the number is not given again.
void end_step(std::uint64_t step);
bool in_step(std::uint64_t step);

}  // namespace habana_mp::watch
