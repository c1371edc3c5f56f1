// An attribute of a Python module that code in C++ asks for once and keeps.
#pragma once

#include <pybind11/pybind11.h>

namespace habana_mp {

// For a static: it is never freed, and where this throws error_already_set the next call asks
// again.
inline PyObject* module_attribute(const char* module, const char* name) {
  return pybind11::object(pybind11::module_::import(module).attr(name)).release().ptr();
}

}  // namespace habana_mp
