// The types of patched ops as Python has them.
#pragma once

#include <torch/csrc/python_headers.h>

namespace habana_mp {

// The two base types: the second binds to an instance as methods and Python functions do (D16). New
// references.
PyObject* patched_function_type();
PyObject* patched_method_type();

// Lets the interpreter call instances of a Python subclass through the C slot although it defines
// `__call__`. Raises TypeError (and returns false) for a type whose base has no slot of ours.
bool enable_vectorcall(PyObject* type);

}  // namespace habana_mp
