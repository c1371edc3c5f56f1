// Weights in 8 bits (D56): one float32 scale for each output, in the layout of kernels/int8/int8.h.
// The copy is one tensor of bytes that begins with what it was made of. A batch of matrices has one
// of them after the other.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "kernels/int8/int8.h"
#include "weights/packed_weight.h"

namespace habana_mp {

// Whether the numbers of a tensor may be rounded so: float32, bfloat16 or float16, of two
// dimensions, of a convolution's three to five, or of a batch's three. Nothing of what it is to the
// program.
bool may_be_int8(const at::Tensor& weight, Layout layout);

// The copy of such a weight, laid out anyhow. RuntimeError where its memory was freed.
at::Tensor rounded_to_int8(const at::Tensor& weight, Layout layout);

// Whether the copy was made of a weight of these sizes and strides.
bool is_int8_of(const at::Tensor& copy, Layout layout, const at::Tensor& weight);

// What the kernels read: each matrix of a batch, at least one. The memory is the copy's.
using Int8Weights = c10::SmallVector<kernels::Int8Weight, 1>;
Int8Weights int8_memory(const at::Tensor& copy);

// The numbers that the copy has, in float32 and with the sizes of the weight.
at::Tensor dequantized(const at::Tensor& copy);

}  // namespace habana_mp
