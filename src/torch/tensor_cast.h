// The one place where a tensor changes dtype.
#pragma once

#include <ATen/core/TensorBase.h>
#include <torch/csrc/python_headers.h>

#include "policy/dtype.h"

namespace habana_mp {

inline DType dtype_of(const at::TensorBase& tensor) {
  if (tensor.is_mkldnn()) return DType::Other;  // opaque: torch itself cannot cast it
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::Float32;
    case at::kBFloat16:
      return DType::BFloat16;
    case at::kHalf:
      return DType::Float16;
    case at::kDouble:
    case at::kComplexHalf:  // D10: what computes in complex numbers is left alone as well
    case at::kComplexFloat:
    case at::kComplexDouble:
      return DType::Float64;
    default:
      return DType::Other;
  }
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
