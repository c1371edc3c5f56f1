// The one place where a tensor changes dtype.
#pragma once

#include <ATen/core/TensorBase.h>
#include <torch/csrc/python_headers.h>

#include <array>

#include "policy/dtype.h"
#include "cast/result_memory.h"

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

inline DType dtype_of_type(at::ScalarType type) { return kDTypeOf[static_cast<std::size_t>(type)]; }

inline DType number_dtype(const at::TensorBase& tensor) {
  return dtype_of_type(tensor.scalar_type());
}

// As decide() is to see it: tensors in oneDNN's opaque layout are not eligible, torch itself cannot
// cast them.
inline DType dtype_of(const at::TensorBase& tensor) {
  return tensor.is_mkldnn() ? DType::Other : number_dtype(tensor);
}

// What the caller of a cast allows.
struct How {
  bool cached = false;      // a copy that the weight cache holds, where the tensor is a weight
  bool contiguous = false;  // contiguous, where the tensor lies so that an op would copy it again
  bool* served = nullptr;   // told whether the copy was there already
};

// The cast of a tensor: differentiable, laid out as the source unless `how` says otherwise. On any
// thread, with or without the GIL.
at::Tensor cast_to(const at::Tensor& source, DType to, How how = {});

// The same for the gradient of a weight, of which there is one in each step, in the given strides;
// for any gradient where they are empty.
at::Tensor cast_gradient(const at::Tensor& gradient, DType to, at::IntArrayRef strides);

// The cast of a Python tensor: a new reference, or null with a Python error set. A tensor subclass
// is cast by its own `.to`, so that its __torch_function__ sees the cast and its type is kept.
// Holds the GIL, but for large tensors.
PyObject* cast_tensor(PyObject* tensor, DType to, How how = {});

// For the weight cache. Whether nobody but torch itself has a say in what happens to the tensor: no
// subclass, mode, tracer, transform, or tangent to carry forward (D35).
bool is_ordinary(const at::Tensor& tensor);

// The numbers alone, of an ordinary tensor: autograd sees nothing. `strides` empty: as it lies.
at::Tensor cast_numbers(const at::Tensor& source, DType to, at::IntArrayRef strides,
                        Lifetime lifetime);

// The same into a tensor of the same sizes and device, of dtype `to`.
void cast_numbers_into(const at::Tensor& source, const at::Tensor& target);

// Whether the tensor is what a decomposition or a meta function sees while torch traces: a subclass
// that holds other tensors (fake, functional), or a tensor without data.
bool is_traced(PyObject* tensor);

// Whether the call is one of the compiler's, which traces without computing: it is no call for the
// log.
bool is_fake(PyObject* tensor);

}  // namespace habana_mp
