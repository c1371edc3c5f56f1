// Questions about the schemas of torch's ops.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>

namespace habana_mp {

// Of torch's own ops; other libraries have theirs.
inline constexpr std::string_view kAten = "aten::";

// "mm" of "aten::mm"; the name of another library's op as it is.
inline std::string_view without_aten(std::string_view op) {
  if (op.starts_with(kAten)) op.remove_prefix(kAten.size());
  return op;
}

// "conv2d.padding": without a dot where there is no overload.
inline std::string overload_of(const c10::FunctionSchema& schema) {
  std::string name(without_aten(schema.name()));
  return schema.overload_name().empty() ? name : name + "." + schema.overload_name();
}

inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace habana_mp
