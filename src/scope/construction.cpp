#include "scope/construction.h"

#include <pybind11/pybind11.h>

#include <unordered_map>

namespace habana_mp {
namespace {

namespace py = pybind11;

// Never destroyed, as its objects must not be freed after the interpreter has ended.
// The class that the first argument has to be of, or null for any.
std::unordered_map<PyCodeObject*, PyObject*>& construction_codes() {
  static auto* codes = new std::unordered_map<PyCodeObject*, PyObject*>;
  return *codes;
}

// Whether the first argument of the function that the frame runs is an instance.
bool is_first_argument_of(PyFrameObject* frame, PyCodeObject* code, PyObject* of) {
  try {
    const py::object names = py::handle(reinterpret_cast<PyObject*>(code)).attr("co_varnames");
    const py::object locals = py::handle(reinterpret_cast<PyObject*>(frame)).attr("f_locals");
    return py::isinstance(locals[names[py::int_(0)]], of);
  } catch (const py::error_already_set&) {  // none, or it is deleted
    return false;
  }
}

}  // namespace

void add_construction_code(PyCodeObject* code, PyObject* of) {
  if (!construction_codes().try_emplace(code, of).second) return;
  Py_INCREF(code);
  Py_XINCREF(of);
}

bool finds_construction() {
  const auto& codes = construction_codes();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  bool found = false;
  while (frame != nullptr && !found) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const auto known = codes.find(code);
    found = known != codes.end() &&
            (known->second == nullptr || is_first_argument_of(frame, code, known->second));
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  may_construct = found;
  return found;
}

}  // namespace habana_mp
