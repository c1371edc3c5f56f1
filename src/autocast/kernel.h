// The kernels of hmp.autocast: what the dispatcher calls before an op inside a region. Each casts
// the arguments as decide() says and calls the op below autocast. What is in force where is
// scope/regions.h.
#pragma once

#include "scope/rules.h"

namespace habana_mp::autocast {

// Registers the kernels of all ops that the policy names, and of those that torch itself casts, if
// they are not registered yet.
void register_kernels(const Rules& rules);

}  // namespace habana_mp::autocast
