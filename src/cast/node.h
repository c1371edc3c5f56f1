// The autograd node of a cast (D34).
#pragma once

#include <ATen/core/TensorBase.h>
#include <torch/csrc/python_headers.h>

namespace habana_mp {

// Makes `result`, a cast of `source` that was computed out of autograd's sight, its differentiable
// successor: what torch's own kernel of the cast does, with a node named CopyBackwards. `cached`:
// the memory of the weight whose copy in the cache `result` is.
void record_backward(const at::Tensor& source, const at::Tensor& result,
                     const c10::StorageImpl* cached = nullptr);

// Gives the node its Python type. Once, when the module is imported.
void register_copy_backwards();

}  // namespace habana_mp
