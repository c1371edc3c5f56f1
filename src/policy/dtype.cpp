// The names of the types. See dtype.h.
#include "policy/dtype.h"

namespace habana_mp {

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return "float16";
    case DType::BFloat16:
      return "bfloat16";
    case DType::Float32:
      return "float32";
    case DType::Float64:
      return "float64";
    case DType::Other:
      break;
  }
  return "other";
}

DType low_dtype_named(std::string_view name) {
  for (const DType dtype : kLowDTypes) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return DType::Other;
}

const char* cast_name(DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return "to_fp16";
    case DType::BFloat16:
      return "to_bf16";
    case DType::Float32:
      return "to_fp32";
    case DType::Float64:
    case DType::Other:
      break;
  }
  return "to_other";
}

}  // namespace habana_mp
