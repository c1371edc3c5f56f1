// The dtypes of torch as the policy numbers them, and back.
#pragma once

#include <ATen/core/TensorBase.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "policy/dtype.h"

namespace habana_mp {

// The scalar type of a dtype, and behind it others that count as this dtype.
struct ScalarTypeOf {
  DType dtype;
  at::ScalarType type;
};
inline constexpr ScalarTypeOf kScalarTypes[] = {
    {DType::Float8, at::kFloat8_e4m3fn},
    {DType::Float8, at::kFloat8_e5m2},
    {DType::Float8, at::kFloat8_e4m3fnuz},
    {DType::Float8, at::kFloat8_e5m2fnuz},
    {DType::Float16, at::kHalf},
    {DType::BFloat16, at::kBFloat16},
    {DType::Float32, at::kFloat},
    {DType::Float64, at::kDouble},
    // D10: a call that computes in complex numbers is left alone as well.
    {DType::Float64, at::kComplexHalf},
    {DType::Float64, at::kComplexFloat},
    {DType::Float64, at::kComplexDouble},
};

// Tables both ways, because every patched call reads the first for every tensor.
inline constexpr auto kDTypeOf = [] {
  std::array<DType, static_cast<std::size_t>(at::ScalarType::NumOptions)> table{};
  for (const auto& [dtype, type] : kScalarTypes) table[static_cast<std::size_t>(type)] = dtype;
  return table;
}();
inline constexpr auto kScalarTypeOf = [] {
  std::array<at::ScalarType, kDTypeCount> table{};
  table.fill(at::ScalarType::Undefined);
  for (const auto& [dtype, type] : kScalarTypes) {
    at::ScalarType& own = table[static_cast<std::size_t>(dtype)];
    if (own == at::ScalarType::Undefined) own = type;
  }
  return table;
}();
static_assert(std::ranges::count(kScalarTypeOf, at::ScalarType::Undefined) == 2,
              "all but Other and Int8 have a scalar type");

inline DType dtype_of_type(at::ScalarType type) { return kDTypeOf[static_cast<std::size_t>(type)]; }

inline DType number_dtype(const at::TensorBase& tensor) {
  return dtype_of_type(tensor.scalar_type());
}

// As decide() is to see it: tensors in oneDNN's opaque layout are not eligible, torch itself cannot
// cast them.
inline DType dtype_of(const at::TensorBase& tensor) {
  return tensor.is_mkldnn() ? DType::Other : number_dtype(tensor);
}

constexpr at::ScalarType scalar_type(DType dtype) {
  return kScalarTypeOf[static_cast<std::size_t>(dtype)];
}

}  // namespace habana_mp
