// The 8-bit copies of weights, and the numbers of products, convolutions and embeddings with them,
// out of autograd's sight: ordinary tensors on the CPU, whose sizes fit each other.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "call/int8_windows.h"
#include "kernels/int8/int8.h"
#include "weights/int8_weight.h"
#include "weights/weight_cache.h"

namespace habana_mp {

// The weight in 8 bits, of the cache where it takes it. Passed on to the listeners as a cast.
// `known`: the same, where it was made before.
at::Tensor int8_copy(const at::Tensor& weight, Layout layout,
                     std::optional<WeightCache::Caller> caller, const at::Tensor& known = {});

// What becomes of activations: the low dtype by way of which they are rounded to 8 bits, where they
// are not of it yet; none: they are low numbers, and stay such.
using Int8Activations = std::optional<DType>;

// Of contiguous numbers (rows x inputs, or more dimensions before the inputs). Of several weights
// each has its share of the rows. `bias`: float32, one for each output, or undefined. `result`: the
// dtype of the result.
at::Tensor int8_rows(const at::Tensor& input, const Int8Weights& weights, const at::Tensor& bias,
                     Int8Activations activations, at::ScalarType result);

// Of images (count x channels x sizes). Activations in 8 bits have one scale an image.
at::Tensor int8_windows(const at::Tensor& images, const kernels::Int8Weight& weight,
                        at::IntArrayRef weight_sizes, const at::Tensor& bias,
                        const Int8Windows& windows, Int8Activations activations,
                        at::ScalarType result);

// A row of the weight for each index. IndexError, as torch's embedding has it, for one that is
// none.
at::Tensor int8_lookup(const at::Tensor& indices, const kernels::Int8Weight& weight,
                       at::ScalarType result);

}  // namespace habana_mp
