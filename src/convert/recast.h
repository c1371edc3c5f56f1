// A region of autocast inside a conversion gets what convert has cast, and may cast it once more.
#pragma once

#include <string_view>

#include "policy/dtype.h"

namespace habana_mp {

// Whether autocast on the CPU, torch's own or a region of ours, may cast the arguments of a product
// or a convolution that convert has cast to `to`. The call then has to pass the dispatcher: a
// packed weight, and an op of ours in a trace, would leave that cast out.
bool may_be_recast(std::string_view op, DType to);

}  // namespace habana_mp
