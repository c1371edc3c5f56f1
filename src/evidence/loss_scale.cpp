#include "evidence/loss_scale.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <cmath>
#include <exception>

#include "base/torch_private.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

// Of a factor that gets no gradient. Hooks of its saver may run anything: they are not called.
at::Tensor factor_in(const torch::autograd::SavedVariable& saved) {
  if (saved.has_hooks()) return {};
  const at::Tensor factor = saved.unpack();
  if (!factor.defined() || factor.requires_grad() || factor.numel() != 1 || !is_readable(factor))
    return {};
  return factor;
}

}  // namespace

LossScale loss_scale(const at::Tensor& loss) {
  const OutOfSight out_of_sight;
  LossScale scale;
  bool by_tensor = true;
  try {
    auto node = loss.grad_fn();
    while (node != nullptr && node->name() == torch_private::kProductNode) {
      auto& product = static_cast<torch_private::ProductNode&>(*node);
      const bool first = node->next_edge(0).is_valid();
      if (first == node->next_edge(1).is_valid()) break;
      const at::Tensor factor = factor_in(first ? product.other_ : product.self_);
      if (!factor.defined()) break;
      const double number = factor.item<double>();
      if (!std::isfinite(number) || number == 0) break;
      // A scaler doubles and halves; other tensors may be weights of the loss.
      int exponent = 0;
      const bool doubled = number > 1 && std::frexp(number, &exponent) == 0.5;
      by_tensor = by_tensor && doubled && !torch_private::is_wrapped_number(factor);
      scale.all *= number;
      if (by_tensor) scale.by_tensor *= number;
      node = node->next_edge(first ? 0 : 1).function;
    }
  } catch (const std::exception&) {  // a factor that has been written to since
  }
  return scale;
}

}  // namespace habana_mp::evidence
