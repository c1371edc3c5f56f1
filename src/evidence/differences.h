// Differences that wait for the gradient of the tensor that they are of: the product of the two is
// the change of the loss, to first order.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "evidence/graphs/inner_gradients.h"
#include "report/site.h"

namespace habana_mp::evidence {

// What a result is off by, in bfloat16, and the part of it that rounding the float32 result makes:
// undefined where that is all of it.
struct Difference {
  at::Tensor numbers;
  at::Tensor rounding{};
};

// What is done with the two products. On any thread, without the GIL; what it throws is lost.
// `read`: some are known that use the result.
using Use = std::function<void(double change, double rounding, bool read)>;

// Multiplies the gradient of `result`, in every backward pass that comes to it, with the
// difference. `inner` is taken off that gradient. `maker`: who has made the result, kNone where the
// difference is another's. `use` may be empty. False where there is no room for it: what waits
// takes 4 GiB at most.
bool wait_for_gradient(const at::Tensor& result, Difference difference,
                       std::shared_ptr<InnerGradients> inner, report::SiteId maker, Use use);

// Of one that uses a result which waits: what its part of the gradient makes of the rounding.
using UseRead = std::function<void(report::SiteId maker, double rounding)>;

// A call has ended that was given `arguments`, as they were before any cast.
void watch_readers(c10::ArrayRef<at::Tensor> arguments, c10::ArrayRef<at::Tensor> results,
                   const UseRead& use);

// The next backward pass begins at `root`, with this gradient, which no op hands back: of ones
// where it is undefined.
void begin_at(const at::Tensor& root, const at::Tensor& gradient, UseRead use);

// What the tensor, or what it is a view of, is rounded by, in bfloat16; undefined if it does not
// wait. `maker`, where given: who has made the result.
at::Tensor known_rounding(const at::Tensor& tensor, report::SiteId* maker = nullptr);

// `copy` has the numbers of `source`: those that read it read what `source` is, or is a view of.
void hand_on(const at::Tensor& source, const at::Tensor& copy);

// Whether one of the tensors, or what it is a view of, waits for its gradient.
bool any_waits(c10::ArrayRef<at::Tensor> tensors);

// None waits any more.
void forget_differences();

}  // namespace habana_mp::evidence
