// What the installed torch knows of its aten ops. Knows nothing of policies.
#pragma once

#include <string>
#include <unordered_map>

namespace habana_mp {

// Every aten op: base names with the largest number of tensor arguments that an overload takes (a
// tensor list counts as two, out= arguments do not count), and overload names ("pow.Tensor_Scalar")
// with their own number.
std::unordered_map<std::string, int> aten_tensor_arguments();

}  // namespace habana_mp
