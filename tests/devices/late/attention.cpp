// scaled_dot_product_attention: like CUDA's flash kernel, that of the device is for the low dtypes
// alone, and is chosen by what the op is given.
#include <ATen/ATen.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include "tensors.h"

namespace late {
namespace {

using Optional = std::optional<at::Tensor>;
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                           at::Tensor, at::Tensor, at::Tensor>;

std::int64_t choose(const at::Tensor& query, const at::Tensor&, const at::Tensor&, const Optional&,
                    double, bool, std::optional<double>, bool) {
  const auto& context = at::globalContext();
  auto backend = sdp::SDPBackend::error;
  if (query.dim() == 4 && at::isReducedFloatingType(query.scalar_type()) &&
      context.userEnabledOverrideableSDP()) {
    backend = sdp::SDPBackend::overrideable;
  } else if (context.userEnabledMathSDP()) {
    backend = sdp::SDPBackend::math;
  }
  TORCH_CHECK(backend != sdp::SDPBackend::error, "No available kernel. Aborting execution.");
  return static_cast<std::int64_t>(backend);
}

Results attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const Optional& bias, double dropout, bool causal, bool,
                  std::optional<double> scale) {
  const auto [result, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, causal, bias, scale);
  const at::Tensor none;
  return {result, sums, none, none, query.sym_size(2), key.sym_size(2), none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& bias, std::array<bool, 4>, const at::Tensor& result,
    const at::Tensor& sums, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
    double dropout, bool causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale) {
  const auto given = bias.defined() ? Optional(bias) : std::nullopt;
  const auto [of_query, of_key, of_value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, query, key, value, result,
                                                               sums, dropout, causal, given, scale);
  return {of_query, of_key, of_value, {}};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", backward);
}

}  // namespace
}  // namespace late

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &late::choose)
}
