// The numbers of tensors compared: errors, ranges and products, computed in few passes. On the CPU
// by loops of ours, elsewhere by ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include "report/values.h"

namespace habana_mp::evidence {

// Of two tensors of the same sizes, the second one float32. `difference`, where given, is set to
// ran - reference in bfloat16: a gradient is multiplied with it, which 8 bits are enough for.
report::Error error_of(const at::Tensor& ran, const at::Tensor& reference, at::Tensor* difference);

// Whether the first of two tensors is the second one, in float32, rounded to its dtype. No NaN
// differs from another.
bool is_rounded(const at::Tensor& low, const at::Tensor& full);

report::Range range_of(const at::Tensor& numbers);

// Of one float32 tensor that is added to another one of the same sizes.
report::Absorbed absorbed_of(const at::Tensor& to, const at::Tensor& added);

// Of numbers of any floating dtype, those of masks left out, unseen by listeners.
double sum_of_squares(const at::Tensor& numbers);

// The sum of a * b.
double product(const at::Tensor& a, const at::Tensor& b);

}  // namespace habana_mp::evidence
