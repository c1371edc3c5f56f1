// The numbers of tensors compared where no loop of ours can: by ATen, on any device. And what both
// ways count by.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "report/values.h"

namespace habana_mp::evidence {

// What is larger is a mask (finfo.min), beside which no other number would count.
inline constexpr float kLargestNumber = 1e18F;

// The largest number of float16, and what is halfway to its smallest: below that it rounds to zero.
// The same of the float8 dtypes, whose scale makes the largest number of a tensor their largest.
inline constexpr float kLargestF16 = 65504.0F;
inline constexpr float kUnderF16 = 0x1p-25F;
inline constexpr double kUnderE4M3 = 0x1p-10 / 448.0;
inline constexpr double kUnderE5M2 = 0x1p-17 / 57344.0;

// By how many powers of two half of a ulp of a dtype is below the power of two of the number
// itself.
inline constexpr std::uint32_t kHalfUlpBFloat16 = 8, kHalfUlpFloat16 = 11, kHalfUlpE4M3 = 4,
                               kHalfUlpE5M2 = 3;

// As error_of(), range_of() and absorbed_of() of evidence/numbers.h.
report::Error error_by_aten(const at::Tensor& ran, const at::Tensor& reference,
                            at::Tensor* difference);
report::Range range_by_aten(const at::Tensor& numbers);
report::Absorbed absorbed_by_aten(const at::Tensor& to, const at::Tensor& added);

}  // namespace habana_mp::evidence
