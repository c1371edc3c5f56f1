// Descriptors on torch.Tensor in place of what returns aliases of a tensor's memory (data, numpy,
// untyped_storage, ...) or makes it one (set_): each does what the original does, and ends the copy
// in the weight cache.
#pragma once

#include <torch/csrc/python_headers.h>

namespace habana_mp {

// Of what an alias is taken, and for how long.
enum class AliasKind : int {
  Seen,      // of the tensor, as long as the alias is seen
  Exported,  // of the tensor, for good: who gets it may write through it at any time
  Set,       // by the tensor, of what the method is given (set_)
};

// A watch over a descriptor of torch.Tensor, a property or a method. On the class it gives the
// original. A new reference, or null with a Python error set.
PyObject* alias_watch(PyObject* original, AliasKind kind);

}  // namespace habana_mp
