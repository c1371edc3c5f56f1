// The backward pass that a thread is in, and the loss that it is of; and which row of a report made
// which node of autograd, while somebody wants to know of a backward pass whose ops it runs. For
// this folder and the probes.
#pragma once

#include <cstdint>

#include "report/event.h"

namespace habana_mp::watch {

struct BackwardPass {
  int number;          // as torch's engine counts them
  std::uint32_t loss;  // the line that has called backward, by number_of(); 0 if it is not known
  double scale = 1;    // what the loss is multiplied by, as a GradScaler does
};

// The outermost one: a node may run another, as that of a reentrant checkpoint does. Takes the GIL,
// so not under a lock.
BackwardPass backward_pass();

// The next backward pass that begins is of a loss with this scale.
void begin_scaled(double scale);

// The line of the user's code that this thread is in, by number_of(). Takes the GIL.
std::uint32_t line_here();

// A node begins and ends on this thread.
void enter_node();
void leave_node();

// Balanced: kept as long as one wants them.
void keep_nodes(bool wanted);

// A call has ended that made nodes. With the lock of the observer.
void note_nodes(const report::Call& call);

// The site whose call made the autograd node with this number; kNone where none is known.
report::SiteId site_of_node(std::uint64_t number);

}  // namespace habana_mp::watch
