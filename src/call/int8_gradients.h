// Products and convolutions in 8 bits whose input or bias needs a gradient, and whose weight needs
// none: the nodes that autograd records. The gradient of the input is by the numbers of the 8-bit
// weight, in the dtype of the result.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "call/int8_product.h"
#include "weights/packed_weight.h"

namespace habana_mp {

struct Int8Forward {
  // Its copy in 8 bits, which the gradient is by, whatever becomes of the weight: nobody writes to
  // one. In a compiler's trace the weight itself: compiled code looks the copy up once more.
  at::Tensor weight;
  Layout layout;
  std::function<at::Tensor()> compute;  // the result, out of autograd's sight
  bool cached = true;                   // whether compiled code looks it up in the cache
};

// What the product and a bias of any sizes are multiplied by before they are added, in float32.
struct Int8Factors {
  double product, bias;
};

// `bias`: one number for each output, or undefined; with factors, which `compute` knows, any.
at::Tensor recorded_product(const at::Tensor& input, const at::Tensor& bias,
                            const Int8Forward& forward,
                            const std::optional<Int8Factors>& factors = std::nullopt);
at::Tensor recorded_convolution(const at::Tensor& input, const at::Tensor& bias,
                                const Int8Windows& windows, const Int8Forward& forward);

// The numbers of the 8-bit copy of a weight, for the backward pass of compiled code:
//
//   habana_mp::dequantized(Tensor weight, *, ScalarType dtype, bool turned, bool cached) -> Tensor
at::Tensor dequantized_weight(const at::Tensor& weight, at::ScalarType dtype, bool turned,
                              bool cached);

}  // namespace habana_mp
