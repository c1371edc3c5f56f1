#include "autocast/catalogue.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

namespace habana_mp {
namespace {

int tensor_arguments(const c10::FunctionSchema& schema) {
  int count = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.is_out()) continue;
    c10::TypePtr type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::TensorType) count += 1;
    if (auto list = type->cast<c10::ListType>()) {
      c10::TypePtr element = list->getElementType();
      if (auto optional = element->cast<c10::OptionalType>()) element = optional->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) count += 2;
    }
  }
  return count;
}

}  // namespace

std::unordered_map<std::string, int> aten_tensor_arguments() {
  constexpr std::string_view kNamespace = "aten::";
  auto& dispatcher = c10::Dispatcher::singleton();
  std::unordered_map<std::string, int> result;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with(kNamespace)) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value()) continue;
    const int count = tensor_arguments(op->schema());
    const std::string base = name.name.substr(kNamespace.size());
    auto& largest = result[base];
    largest = std::max(largest, count);
    if (!name.overload_name.empty()) result[base + "." + name.overload_name] = count;
  }
  return result;
}

}  // namespace habana_mp
