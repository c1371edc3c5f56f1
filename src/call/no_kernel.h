// Calls that fail because the device has no kernel of the op for a low dtype (D42): how they are
// recognised, and what the log and the report say of them. Both front ends then run the op in
// float32.
#pragma once

#include <exception>
#include <span>
#include <string>
#include <string_view>

#include "policy/decide.h"

namespace habana_mp {

// Whether the message of an error blames a low dtype. torch has no type of error for it.
bool blames_low_dtype(std::string_view message);
// Whether a kernel threw such an error. One that Python raised is none of it.
bool lacks_low_kernel(const std::exception& error);

// "no bfloat16 kernel", or "no kernel for bfloat16 with float32" where the arguments differ. `low`:
// what the policy runs its lower list in, which is meant where no argument is low.
std::string no_kernel_text(std::span<const Arg> arguments, DType low);

}  // namespace habana_mp
