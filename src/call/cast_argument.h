// The cast of an argument, for both front ends: by the weight cache where the tensor is a weight,
// in a layout that the op would otherwise make by another copy, and passed on to the listeners.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/python_headers.h>

#include "policy/dtype.h"

namespace habana_mp {

// What the op allows.
struct How {
  bool cached = false;      // a copy that the weight cache holds, where the tensor is a weight
  bool contiguous = false;  // contiguous, where the tensor lies so that the op would copy it again
};

// The cast of a tensor of an eligible dtype to another one: differentiable, laid out as the source
// unless `how` says otherwise. On any thread, with or without the GIL.
at::Tensor cast_argument(const at::Tensor& source, DType to, How how);

// The tensor, which may be undefined, if its numbers are of this dtype; else its cast, one that the
// weight cache may hold.
at::Tensor in_dtype(const at::Tensor& tensor, DType to, bool contiguous);

// A cast of a Python tensor: a new reference, or null with a Python error set. A tensor subclass
// is cast by its own `.to`, so that its __torch_function__ sees the cast and its type is kept.
// Holds the GIL, but for large tensors.
PyObject* cast_argument(PyObject* tensor, DType to, How how);

// Whether matrix multiplication, which sees a batch as one long matrix or as a row of matrices,
// would copy the tensor before it reads it (F.linear and matmul reshape their inputs).
// Matrices that are transposed, each in its place, are read as they are.
bool copied_by_matmul(const at::Tensor& tensor);
// The same of a tensor that a tracer or a transform sees, whose sizes may be symbols.
bool copied_when_traced(const at::Tensor& tensor);

// For hmp.cast: no argument of an op, so no listener is called, and the tensor may have any dtype.
PyObject* cast_by_hand(PyObject* tensor, DType to);

// The casts of one call that must not be returned to the caller, who may write to them or ask what
// they require: the weight cache holds their memory, or made them to require grad where grad mode
// is off. A result that is a view of one, or is one (dropout in eval), is such.
class LentCopies {
 public:
  void add(const at::Tensor& cast);
  bool empty() const { return copies_.empty(); }
  bool include(const at::Tensor& result) const;
  void clear() { copies_.clear(); }

 private:
  c10::SmallVector<at::Tensor, 2> copies_;
};

}  // namespace habana_mp
