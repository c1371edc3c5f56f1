// One call of a patched op: decided, its arguments cast, and the original called.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstddef>

namespace habana_mp {

// The vectorcall slot of PatchedOp.
PyObject* vectorcall(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                     PyObject* kwnames);

}  // namespace habana_mp
