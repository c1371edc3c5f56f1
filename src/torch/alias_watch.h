// Descriptors that stand on torch.Tensor in place of what hands out aliases of a tensor's memory
// (data, numpy, untyped_storage, ...): they tell the weight cache, then do what the original does.
#pragma once

#include <torch/csrc/python_headers.h>

namespace habana_mp {

// A watch over a descriptor of torch.Tensor, a property or a method. `exported`: who gets the alias
// may write through it at any time, not only while it is seen. On the class it gives the original.
// A new reference, or null with a Python error set.
PyObject* alias_watch(PyObject* original, bool exported);

}  // namespace habana_mp
