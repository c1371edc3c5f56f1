// Which tensors an instrument may read.
#pragma once

#include "cast/numbers.h"
#include "cast/storage_check.h"

namespace habana_mp::evidence {

// Whether the numbers are there to be read by ATen: of a strided tensor, not one of a compiler, of
// a transform, of a subclass with Python of its own, or of memory that was given back (FSDP does
// so).
inline bool is_readable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta() &&
         is_ordinary(tensor) && holds_numbers(tensor);
}

}  // namespace habana_mp::evidence
