// The backward pass that a thread is in, and the loss that it is of. For this folder and the
// probes.
#pragma once

#include <cstdint>

namespace habana_mp::watch {

struct BackwardPass {
  int number;          // as torch's engine counts them
  std::uint32_t loss;  // the line that has called backward, by number_of(); 0 if it is not known
};

// The outermost one: a node may run another, as that of a reentrant checkpoint does. Takes the GIL,
// so not under a lock.
BackwardPass backward_pass();

// A node begins and ends on this thread.
void enter_node();
void leave_node();

}  // namespace habana_mp::watch
