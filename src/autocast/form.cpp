#include "autocast/form.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>

namespace habana_mp::autocast {
namespace {

// D14: the input is the first tensor, the others are affine parameters or running statistics.
constexpr std::array<std::string_view, 10> kNorms = {
    "aten::batch_norm",        "aten::instance_norm",
    "aten::layer_norm",        "aten::group_norm",
    "aten::native_batch_norm", "aten::_batch_norm_impl_index",
    "aten::cudnn_batch_norm",  "aten::_native_batch_norm_legit",
    "aten::native_layer_norm", "aten::native_group_norm"};

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

Role role_of(bool norm, bool first, const std::string& name) {
  if (!norm || first) return Role::Input;
  return name == "running_mean" || name == "running_var" ? Role::Statistic : Role::Affine;
}

}  // namespace

Holds tensors_of(const c10::Argument& argument) {
  const auto is_tensor = [](const c10::TypePtr& type) {
    return without_optional(type)->kind() == c10::TypeKind::TensorType;
  };
  if (is_tensor(argument.type())) return Holds::Tensor;
  const auto list = without_optional(argument.type())->cast<c10::ListType>();
  return list && is_tensor(list->getElementType()) ? Holds::List : Holds::NoTensor;
}

std::optional<Form> form_of(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  if (schema.is_mutable() || arguments.size() > std::numeric_limits<std::uint8_t>::max())
    return std::nullopt;
  const bool norm = std::find(kNorms.begin(), kNorms.end(), schema.name()) != kNorms.end();
  Form form;
  form.count = static_cast<std::uint8_t>(arguments.size());
  form.returns = static_cast<std::uint8_t>(schema.returns().size());
  form.contiguous = schema.name() == "aten::linear" || schema.name() == "aten::matmul";
  for (std::uint8_t i = 0; i < form.count; ++i) {
    const c10::Argument& argument = arguments[i];
    if (argument.name() == "dtype" || argument.name() == "out_dtype") {
      form.dtypes.push_back(i);
    } else if (const Holds holds = tensors_of(argument); holds != Holds::NoTensor) {
      form.tensors.push_back(
          {i, holds == Holds::List, role_of(norm, form.tensors.empty(), argument.name())});
    }
  }
  if (form.tensors.empty()) return std::nullopt;
  return form;
}

}  // namespace habana_mp::autocast
