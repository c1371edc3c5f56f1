// Products with a weight that the weight cache holds packed: linear and addmm, on the CPU, where no
// graph is recorded and the input lies row after row. The numbers are those of a plain copy, unless
// another Packing than Equal is asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "call/packed_choice.h"
#include "policy/dtype.h"
#include "weights/weight_cache.h"

namespace habana_mp {

// How a packed weight serves an op, by its name in lists: Plain where it does not.
Layout packed_layout(std::string_view op);

// A call of linear(input, weight, bias) or addmm(bias, input, weight) whose rule takes float32 to
// `to`. The bias may be undefined.
struct ProductCall {
  Layout layout;
  const at::Tensor& input;
  const at::Tensor& weight;
  const at::Tensor& bias;
  DType to;
  WeightCache::Caller caller;
};

// The same of the tensors of a call in their order.
inline ProductCall product_call(Layout layout, const at::Tensor& first, const at::Tensor& second,
                                const at::Tensor& third, DType to, WeightCache::Caller caller) {
  return layout == Layout::Addmm ? ProductCall{layout, second, third, first, to, caller}
                                 : ProductCall{layout, first, second, third, to, caller};
}

// Its result; undefined, and nothing has been done, where the op is to be called with a plain copy.
// Casts of arguments are passed on to the listeners.
at::Tensor call_packed(const ProductCall& call);

void set_packing(Packing packing);

}  // namespace habana_mp
