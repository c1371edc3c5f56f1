// The floating types that casts move between. It must not know Python, torch or any rule.
#pragma once

#include <cstdint>
#include <string_view>

namespace habana_mp {

// Other: integer, bool, quantised, none. Float64 stands for complex too: a call with either
// computes in a wider kind of number and is left alone (D10). habana_mp._core.DTYPES names these in
// this order.
enum class DType : std::uint8_t { Other, Float16, BFloat16, Float32, Float64 };

// "float16" "bfloat16" "float32" "float64" "other"
const char* dtype_name(DType dtype);

// What a policy may run its lower list in.
inline constexpr DType kLowDTypes[] = {DType::BFloat16, DType::Float16};

// Other for a name that is none of these.
DType low_dtype_named(std::string_view name);

// What the cast log prints: "to_fp16" "to_bf16" "to_fp32" (F111, D25).
const char* cast_name(DType dtype);

// Only these are ever cast (D10).
constexpr bool eligible(DType dtype) {
  return dtype == DType::Float16 || dtype == DType::BFloat16 || dtype == DType::Float32;
}

}  // namespace habana_mp
