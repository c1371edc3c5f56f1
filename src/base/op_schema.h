// Questions about the schemas of torch's ops.
#pragma once

#include <ATen/core/function_schema.h>

namespace habana_mp {

inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace habana_mp
