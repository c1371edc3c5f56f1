// Ops that torch asks of other devices than the CPU, taken apart into those that the CPU has.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "tensors.h"

namespace late {
namespace {

using Optional = std::optional<at::Tensor>;

// As torch does it where a device has no such kernel, whose numbers then come from one generator.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p,
                                           std::optional<bool> train) {
  const Unseen unseen;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor kept = at::empty_like(input, input.options().dtype(at::kBool));
  if (!train.value_or(true)) return {input.clone(), kept.fill_(true)};
  kept.bernoulli_(1 - p);
  return {input.mul(kept).mul_(p == 1 ? 0 : 1 / (1 - p)), kept};
}

at::Tensor plus(const at::Tensor& gates, const Optional& bias) {
  return bias ? gates + *bias : gates;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& of_input,
                                                         const at::Tensor& of_hidden,
                                                         const at::Tensor& cell,
                                                         const Optional& input_bias,
                                                         const Optional& hidden_bias) {
  const at::Tensor gates = plus(of_input, input_bias) + plus(of_hidden, hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const at::Tensor next = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, gates};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& of_input, const at::Tensor& of_hidden,
                                            const at::Tensor& hidden, const Optional& input_bias,
                                            const Optional& hidden_bias) {
  const auto input = plus(of_input, input_bias).chunk(3, 1),
             before = plus(of_hidden, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (input[0] + before[0]).sigmoid(),
                   update = (input[1] + before[1]).sigmoid();
  const at::Tensor next = (input[2] + reset * before[2]).tanh();
  return {(hidden - next) * update + next, of_input};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_dropout", dropout);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}

// With the gradients of what they consist of.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}

}  // namespace
}  // namespace late
