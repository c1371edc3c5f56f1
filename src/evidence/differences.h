// Differences that wait for the gradient of the tensor that they are of: the product of the two is
// the change of the loss, to first order.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "evidence/inner_gradients.h"

namespace habana_mp::evidence {

// What a result is off by, in bfloat16, and the part of it that rounding the float32 result makes:
// undefined where that is all of it.
struct Difference {
  at::Tensor numbers;
  at::Tensor rounding{};
};

// What is done with the two products. On any thread, without the GIL; what it throws is lost.
using Use = std::function<void(double change, double rounding)>;

// Multiplies the gradient of `result`, in every backward pass that comes to it, with the
// difference. `inner` is taken off that gradient. False where there is no room for it: what waits
// takes 4 GiB at most.
bool wait_for_gradient(const at::Tensor& result, Difference difference,
                       std::shared_ptr<InnerGradients> inner, Use use);

// None waits any more.
void forget_differences();

}  // namespace habana_mp::evidence
