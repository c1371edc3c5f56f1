// __enter__ and __exit__ of a context manager as C functions. The interpreter looks for signals
// where a Python function begins and after each call in it, so a Ctrl-C could end them halfway.
#pragma once

#include <pybind11/pybind11.h>

#include "base/python_error.h"
#include "base/torch_private.h"

namespace habana_mp {

namespace run_in_c_detail {

template <PyObject* (*function)(PyObject* const*, Py_ssize_t)>
PyObject* call(PyObject*, PyObject* const* args, std::size_t nargsf, PyObject*) {
  try {
    return function(args, PyVectorcall_NARGS(nargsf));
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

}  // namespace run_in_c_detail

// From now on calls of a Python function run `function` on their positional arguments; it returns a
// new reference.
template <PyObject* (*function)(PyObject* const*, Py_ssize_t)>
void run_in_c(const pybind11::function& python) {
  if (!PyFunction_Check(python.ptr())) throw pybind11::type_error("must be a Python function");
  torch_private::set_vectorcall(python.ptr(), run_in_c_detail::call<function>);
}

}  // namespace habana_mp
