// Torch calls back for every op that it dispatches. An op that no rule has decided is a row of the
// report where no other op has called it.
#pragma once

#include <ATen/record_function.h>

#include "watch/probe.h"

namespace habana_mp::watch {

// With the lock of the observer.
at::CallbackHandle watch_dispatcher();
void unwatch_dispatcher(at::CallbackHandle handle);

// From now on the probe looks at the numbers of calls, until it is removed. std::runtime_error
// while another one does.
void set_probe(Probe& probe);
void remove_probe(Probe& probe);

}  // namespace habana_mp::watch
