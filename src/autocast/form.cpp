#include "autocast/form.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/op_schema.h"
#include "policy/op_traits.h"

namespace habana_mp::autocast {
namespace {

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

// Calls in place are torch's business (F85), unless torch refuses what a policy made of the others.
bool may_decide(const c10::FunctionSchema& schema, std::string_view op) {
  if (!schema.is_mutable()) return true;
  const auto& arguments = schema.arguments();
  return refuses_mixed(op) && std::ranges::none_of(arguments, &c10::Argument::is_out);
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
  const std::string_view op = without_aten(schema.name());
  if (!may_decide(schema, op) || arguments.size() > std::numeric_limits<std::uint8_t>::max())
    return std::nullopt;
  const bool norm = is_norm(op);
  Form form;
  form.count = static_cast<std::uint8_t>(arguments.size());
  form.returns = static_cast<std::uint8_t>(schema.returns().size());
  form.contiguous = wants_contiguous(op);
  for (std::uint8_t i = 0; i < form.count; ++i) {
    const c10::Argument& argument = arguments[i];
    if (argument.name() == "dtype" || argument.name() == "out_dtype") {
      form.dtypes.push_back(i);
    } else if (const Holds holds = tensors_of(argument); holds != Holds::NoTensor) {
      const ArgumentFacts facts{.norm = norm,
                                .first = form.tensors.empty(),
                                .written = is_written(argument),
                                .statistic = names_statistic(argument.name())};
      form.most_tensors += static_cast<std::uint8_t>(holds);
      form.tensors.push_back({i, holds == Holds::List, role_of(facts)});
    }
  }
  if (form.tensors.empty()) return std::nullopt;
  return form;
}

}  // namespace habana_mp::autocast
