// What the tensors of a call are, beyond their dtypes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/python_headers.h>

#include <cstdint>

#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "policy/dtype.h"

namespace habana_mp {

using Tensors = c10::ArrayRef<at::Tensor>;

// Those among the arguments or the results of an op, in lists too.
c10::SmallVector<at::Tensor, 8> tensors_in(c10::ArrayRef<c10::IValue> values);

// As decide() and the report are to see it: a Python number that torch wraps is no float64 (D38).
inline DType dtype_seen(const at::Tensor& tensor) {
  const DType dtype = dtype_of(tensor);
  return dtype == DType::Float64 && torch_private::is_wrapped_number(tensor) ? DType::Other : dtype;
}

// Bits of dtype_bit(), as dtype_seen().
unsigned dtypes_of(Tensors tensors);

// That the numbers of the tensor take in an eligible dtype.
std::uint64_t bytes_of(const at::Tensor& tensor, DType in);

// Not of a tensor of a compiler's trace whose sizes are symbols.
inline bool has_known_sizes(const at::Tensor& tensor) {
  return !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// Whether a tracer or a compiler may see the tensor instead of computing with it: a subclass that
// holds other tensors, or one that is functionalized.
bool may_be_traced(const at::Tensor& tensor);

// The same of what Python holds: a tensor subclass, and a tensor without data, too.
bool is_traced(PyObject* tensor);

// Whether the tensor stands for one in a compiler's trace, where nothing is computed: the call is
// no call for the log or the report. With the GIL.
bool is_fake(PyObject* tensor);
bool is_fake(const at::Tensor& tensor);

}  // namespace habana_mp
