// The dtypes of torch as the policy numbers them, and back.
#pragma once

#include <ATen/core/TensorBase.h>

#include <array>
#include <cstddef>

#include "policy/dtype.h"

namespace habana_mp {

// By scalar type: a table, because every patched call reads it for every tensor.
inline constexpr auto kDTypeOf = [] {
  std::array<DType, static_cast<std::size_t>(at::ScalarType::NumOptions)> table{};
  const auto set = [&table](at::ScalarType type, DType dtype) {
    table[static_cast<std::size_t>(type)] = dtype;
  };
  set(at::kHalf, DType::Float16);
  set(at::kBFloat16, DType::BFloat16);
  set(at::kFloat, DType::Float32);
  set(at::kDouble, DType::Float64);
  // D10: a call that computes in complex numbers is left alone as well.
  set(at::kComplexHalf, DType::Float64);
  set(at::kComplexFloat, DType::Float64);
  set(at::kComplexDouble, DType::Float64);
  return table;
}();

inline DType dtype_of_type(at::ScalarType type) { return kDTypeOf[static_cast<std::size_t>(type)]; }

inline DType number_dtype(const at::TensorBase& tensor) {
  return dtype_of_type(tensor.scalar_type());
}

// As decide() is to see it: tensors in oneDNN's opaque layout are not eligible, torch itself cannot
// cast them.
inline DType dtype_of(const at::TensorBase& tensor) {
  return tensor.is_mkldnn() ? DType::Other : number_dtype(tensor);
}

// Of an eligible dtype, which is what casts lead to.
constexpr at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return at::kHalf;
    case DType::BFloat16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

}  // namespace habana_mp
