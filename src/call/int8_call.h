// Products, convolutions and embeddings whose weight is in 8 bits (D56): which calls have one, and
// their results. The numbers are those of docs/int8.md, the same with and without the weight cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <tuple>

#include "policy/decide.h"
#include "weights/packed_weight.h"
#include "weights/weight_cache.h"

namespace habana_mp {

// What an op computes, and so where its weight is among its arguments.
enum class Int8Op : std::uint8_t {
  None,
  Linear,
  Addmm,
  Mm,
  Matmul,
  Bmm,
  Baddbmm,
  Convolution,
  Embedding,
  EmbeddingBag
};

// Of an op by its name at the dispatcher: "conv2d", "conv2d.padding".
Int8Op int8_op(std::string_view overload);

struct Int8Places {
  std::uint8_t input, weight, bias;
};
// Of an op without a bias its place is that of the input.
constexpr Int8Places places_of(Int8Op op) {
  switch (op) {
    case Int8Op::Addmm:
    case Int8Op::Baddbmm:
      return {1, 2, 0};
    case Int8Op::Embedding:
      return {1, 0, 1};
    case Int8Op::EmbeddingBag:
      return {1, 0, 6};
    case Int8Op::Mm:
    case Int8Op::Matmul:
    case Int8Op::Bmm:
      return {0, 1, 0};
    default:
      return {0, 1, 2};
  }
}
constexpr bool has_bias(Int8Op op) { return places_of(op).bias != places_of(op).input; }

// Whether its weight is a batch of matrices.
constexpr bool is_batched(Int8Op op) { return op == Int8Op::Bmm || op == Int8Op::Baddbmm; }

// The layout of its weight in 8 bits.
constexpr Layout int8_layout(Int8Op op) {
  const bool turned = op == Int8Op::Addmm || op == Int8Op::Mm || op == Int8Op::Matmul;
  return turned || is_batched(op) ? Layout::Int8Turned : Layout::Int8;
}

// Whether the call has a weight that may be in 8 bits now: a parameter of the model that no graph
// is recorded of. Other calls run as those of the lower list, and so do convolutions of nothing.
// `traced`: a compiler sees the weight.
bool has_int8_weight(Int8Op op, const at::Tensor& input, const at::Tensor& weight, bool traced);

// Whether the kernels can compute with them: on the CPU, and nobody but torch itself looks on.
// Other tensors are rounded, and torch multiplies them.
bool has_int8_kernel(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

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
// refuses. `alpha` and `beta`: those of addmm and baddbmm.
at::Tensor int8_product(Layout layout, const Int8Operands& call, const at::Scalar& beta = 1,
                        const at::Scalar& alpha = 1);
at::Tensor int8_convolution(const Int8Operands& call, const Int8Convolution& numbers);
// The same in a compiler's trace that records a graph: `op`, which is all of the call, gets a node
// that differentiates as the result above does.
using WholeOp = std::function<at::Tensor()>;
at::Tensor traced_int8_product(Layout layout, const Int8Operands& call, const WholeOp& op,
                               const at::Scalar& beta, const at::Scalar& alpha);
at::Tensor traced_int8_convolution(const Int8Operands& call, const Int8Convolution& numbers,
                                   const WholeOp& op);
at::Tensor int8_embedding(const Int8Operands& call);
// The same of any of these ops with one result, by its arguments at the dispatcher.
at::Tensor int8_result(Int8Op op, const Int8Operands& call, c10::ArrayRef<c10::IValue> arguments);

// What embedding_bag has beside its operands, whose bias is the weights of the samples.
struct Int8Bags {
  at::Tensor offsets;
  bool scale_grad_by_freq;
  std::int64_t mode;
  bool sparse, include_last_offset;
  std::optional<std::int64_t> padding_index;
};
// Its four results: by torch, of the rows that an embedding has.
using BagResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
std::optional<BagResults> int8_embedding_bag(const Int8Operands& call, const Int8Bags& bags);

// What a weight has after it was rounded to 8 bits, by ops of torch: in float32. For traces and for
// devices without kernels.
at::Tensor rounded_weight(Int8Op op, const at::Tensor& weight);
// The same of activations in the low dtype. A gradient, or a tangent, goes by the rounding as it
// does in the kernels.
at::Tensor rounded_activations(Int8Op op, const at::Tensor& low, std::int64_t weight_dims);

}  // namespace habana_mp
