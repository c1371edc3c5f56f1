// The autograd node of a cast (D34), and the cast that has one.
//
// The weight cache lies above this folder and needs to know of backward passes: it sets a function
// here while it does.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <atomic>

#include "cast/dtypes.h"
#include "cast/result_memory.h"

namespace habana_mp {

// Whether autograd records what is computed from the tensor.
inline bool records_graph(const at::Tensor& tensor) {
  return c10::GradMode::is_enabled() && tensor.requires_grad();
}

// The cast of an ordinary tensor (cast/numbers.h) of another eligible dtype, differentiable.
// `strides` empty: those of the source.
at::Tensor cast_ordinary(const at::Tensor& source, DType to, at::IntArrayRef strides,
                         Lifetime lifetime);

// Makes `result`, a cast of `source` that was computed out of autograd's sight, its differentiable
// successor: what torch's own kernel of the cast does, with a node named CopyBackwards. `weight`:
// the memory of the weight whose copy in the cache `result` is.
void record_backward(const at::Tensor& source, const at::Tensor& result,
                     const c10::StorageImpl* weight = nullptr);

// Called when the gradient of the weight in this memory has been computed.
using WeightDone = void (*)(const c10::StorageImpl*);
inline std::atomic<WeightDone> weight_done{nullptr};

// Gives the node its Python type. Once, when the module is imported.
void register_copy_backwards();

}  // namespace habana_mp
