// Products and convolutions with a weight that the weight cache holds packed: linear, addmm, conv2d
// and conv3d, on the CPU, where no graph is recorded and the input lies as oneDNN reads it: row
// after row, or with its channels last. The numbers are those of a plain copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>

#include "base/torch_private.h"
#include "call/packed_arguments.h"

namespace habana_mp {

// A region of autocast inside a conversion gets what convert has cast, and may cast it once more:
// whether autocast on the CPU, torch's own or a region of ours, may cast the arguments of a product
// or a convolution that convert has cast to `to`. The call then has to pass the dispatcher: a
// packed weight, and an op of ours in a trace, would leave that cast out.
bool may_be_recast(std::string_view op, DType to);

// The layout of a weight that is packed for an op, by its name in lists; Plain for ops that read no
// packed ones.
Layout packed_layout(std::string_view op);

// The operands of linear(input, weight, bias), addmm(bias, input, weight) or
// conv2d(input, weight, bias), of its first three arguments.
inline PackedOperands packed_operands(Layout layout, const at::Tensor& first,
                                      const at::Tensor& second, const at::Tensor& third, DType to,
                                      WeightCache::Caller caller) {
  return layout == Layout::Addmm ? PackedOperands{second, third, first, to, caller}
                                 : PackedOperands{first, second, third, to, caller};
}

// The result of a product; undefined, and nothing has been done, where the op is to be called with
// a plain copy.
at::Tensor packed_product(Layout layout, const PackedOperands& call);

// The same of a convolution, whose numbers are given for as many dimensions as the images have;
// where there is only one, it is that of all.
at::Tensor packed_convolution(const PackedOperands& call,
                              const torch_private::ConvolutionNumbers& numbers);

// The same call of low tensors with a weight that is packed now, without the cache: to measure what
// inference takes. Empty where inference would call the op with a plain copy.
using Prepared = std::function<at::Tensor()>;
Prepared prepared_product(Layout layout, const PackedOperands& low);
Prepared prepared_convolution(const PackedOperands& low,
                              const torch_private::ConvolutionNumbers& numbers);

}  // namespace habana_mp
