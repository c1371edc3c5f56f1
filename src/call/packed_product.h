// The ways to compute a product with a weight on the CPU, all of which give the same numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/dtype.h"
#include "weights/weight_cache.h"

namespace habana_mp {

enum class By : std::uint8_t {
  PlainCopy,  // by torch, which lays out the weight anew
  OneDnn,     // by oneDNN, of the packed weight
  OurKernel,  // by kernels/linear/linear.h, of the packed weight
  OurRow,     // the same of one row, in the order of sums that torch 2.15 has
};
inline constexpr std::size_t kWays = 4;
inline constexpr std::array<const char*, kWays> kWayNames = {"plain", "onednn", "own", "own"};

// Above so many rows oneDNN is as fast as our kernel.
inline constexpr std::int64_t kFewRows = 32;

// Whether a packed weight lies as our kernel reads it: compared with the plain one, outputs x
// inputs, at many places.
bool is_readable(const WeightCache::Packed& packed, const at::Tensor& plain);

// Of contiguous inputs (rows x inputs, or more dimensions). The bias may be undefined.
at::Tensor product(By way, Layout layout, const at::Tensor& input,
                   const WeightCache::Packed& weight, const at::Tensor& bias);
at::Tensor product_of_plain(Layout layout, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias);

}  // namespace habana_mp
