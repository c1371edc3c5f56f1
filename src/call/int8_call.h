// Products, convolutions and embeddings whose weight is in 8 bits (D56): which calls have one, and
// their results. The numbers are those of docs/int8.md, the same with and without the weight cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "policy/decide.h"
#include "weights/packed_weight.h"
#include "weights/weight_cache.h"

namespace habana_mp {

// What an op computes, and so where its weight is among its arguments.
enum class Int8Op : std::uint8_t { None, Linear, Addmm, Mm, Matmul, Convolution, Embedding };

// Of an op by its name at the dispatcher: "conv2d", "conv2d.padding".
Int8Op int8_op(std::string_view overload);

struct Int8Places {
  std::uint8_t input, weight, bias;
};
// Of an op without a bias its place is that of the input.
constexpr Int8Places places_of(Int8Op op) {
  switch (op) {
    case Int8Op::Addmm:
      return {1, 2, 0};
    case Int8Op::Embedding:
      return {1, 0, 1};
    case Int8Op::Mm:
    case Int8Op::Matmul:
      return {0, 1, 0};
    default:
      return {0, 1, 2};
  }
}
constexpr bool has_bias(Int8Op op) {
  return op == Int8Op::Linear || op == Int8Op::Addmm || op == Int8Op::Convolution;
}

// The layout of its weight in 8 bits.
constexpr Layout int8_layout(Int8Op op) {
  const bool turned = op == Int8Op::Addmm || op == Int8Op::Mm || op == Int8Op::Matmul;
  return turned ? Layout::Int8Turned : Layout::Int8;
}

// Whether the call has a weight that may be in 8 bits now: a parameter of the model that no graph
// is recorded of. Other calls run as those of the lower list. `traced`: a compiler sees the weight.
bool has_int8_weight(Int8Op op, const at::Tensor& weight, bool traced = false);

// Whether the kernels can compute with them: on the CPU, and nobody but torch itself looks on.
// Other tensors are rounded, and torch multiplies them.
bool has_int8_kernel(const at::Tensor& input, const at::Tensor& weight);

struct Int8Operands {
  const at::Tensor& input;
  const at::Tensor& weight;
  const at::Tensor& bias;  // may be undefined
  DType to;
  bool activations;                           // in 8 bits, too
  std::optional<WeightCache::Caller> caller;  // none: without the cache
  at::Tensor copy{};                          // of the weight, where it is known
};

struct Int8Convolution {
  at::IntArrayRef stride, padding, dilation;
  std::int64_t groups;
  bool same;  // in place of the padding: as much as leaves the sizes as they are
};

// The result of a linear layer, or of a product with a weight whose outputs come last, where there
// is a kernel; undefined, and nothing has been done, where the sizes or dtypes are such as the op
// refuses. `alpha` and `beta`: addmm's.
at::Tensor int8_product(Layout layout, const Int8Operands& call, const at::Scalar& beta = 1,
                        const at::Scalar& alpha = 1);
at::Tensor int8_convolution(const Int8Operands& call, const Int8Convolution& numbers);
at::Tensor int8_embedding(const Int8Operands& call);
// The same of any of these ops, by its arguments at the dispatcher.
at::Tensor int8_result(Int8Op op, const Int8Operands& call, c10::ArrayRef<c10::IValue> arguments);

// What a tensor has after it was rounded to 8 bits, by ops of torch: in float32, with one scale for
// all numbers that lie along `dims`. For traces and for devices without kernels.
at::Tensor rounded_by_torch(const at::Tensor& tensor, at::IntArrayRef dims);

}  // namespace habana_mp
