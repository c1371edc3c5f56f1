// The one place where a tensor changes dtype.
#pragma once

#include <ATen/core/TensorBase.h>
#include <torch/csrc/python_headers.h>

#include <array>

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
  // D10: what computes in complex numbers is left alone as well.
  set(at::kComplexHalf, DType::Float64);
  set(at::kComplexFloat, DType::Float64);
  set(at::kComplexDouble, DType::Float64);
  return table;
}();

inline DType number_dtype(const at::TensorBase& tensor) {
  return kDTypeOf[static_cast<std::size_t>(tensor.scalar_type())];
}

// As decide() is to see it: tensors in oneDNN's opaque layout are not eligible, torch itself cannot
// cast them.
inline DType dtype_of(const at::TensorBase& tensor) {
  return tensor.is_mkldnn() ? DType::Other : number_dtype(tensor);
}

// The cast of a Python tensor: a new reference, or null with a Python error set. Differentiable. A
// tensor subclass is cast by its own `.to`, so that its __torch_function__ sees the cast and its
// type is kept. Holds the GIL, but for large tensors.
PyObject* cast_tensor(PyObject* tensor, DType to);

// Whether the tensor is what a decomposition or a meta function sees while torch traces: a subclass
// that holds other tensors (fake, functional), or a tensor without data.
bool is_traced(PyObject* tensor);

// Whether the call is one of the compiler's, which traces without computing: it is no call for the
// log.
bool is_fake(PyObject* tensor);

}  // namespace habana_mp
