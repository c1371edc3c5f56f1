// How the dispatcher writes the calls of one op: where in its argument stack the tensors are, what
// they are to the op, and which argument names the dtype of the result.
#pragma once

#include <ATen/core/function_schema.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>

#include "policy/decide.h"

namespace habana_mp::autocast {

enum class Holds : std::uint8_t { NoTensor, Tensor, List };  // optional ones too

Holds tensors_of(const c10::Argument& argument);

// An argument that holds tensors.
struct TensorArgument {
  std::uint8_t position;
  bool list;
  Role role;
};

struct Form {
  std::uint8_t count = 0;         // of all arguments
  std::uint8_t returns = 0;       // of all results
  std::uint8_t most_tensors = 0;  // a call may have, a list counted as two
  bool contiguous = false;        // the op would copy a batch that lies otherwise
  c10::SmallVector<TensorArgument, 6> tensors;
  c10::SmallVector<std::uint8_t, 1> dtypes;  // positions of dtype, out_dtype
};

// None for ops without tensors, with out=, and for most of those in place.
std::optional<Form> form_of(const c10::FunctionSchema& schema);

}  // namespace habana_mp::autocast
