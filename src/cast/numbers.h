// The one place where a tensor changes dtype: the numbers of a cast, out of autograd's sight. With
// its autograd node: cast/node.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "cast/dtypes.h"
#include "cast/result_memory.h"

namespace habana_mp {

// Whether nothing but torch itself decides what happens to the tensor: no subclass, mode, tracer,
// transform, or tangent to carry forward (D35). Every other tensor is cast by its own `.to`.
bool is_ordinary(const at::Tensor& tensor);

// The numbers alone, of an ordinary tensor: autograd sees nothing. `strides` empty: those of the
// source.
at::Tensor cast_numbers(const at::Tensor& source, DType to, at::IntArrayRef strides,
                        Lifetime lifetime);

// The same into a tensor of the same sizes and device, of dtype `to`.
void cast_numbers_into(const at::Tensor& source, const at::Tensor& target);

}  // namespace habana_mp
