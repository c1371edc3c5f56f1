#include "scope/construction.h"

#include <unordered_set>

namespace habana_mp {
namespace {

// Never destroyed, as its objects must not be freed after the interpreter has ended.
std::unordered_set<const PyCodeObject*>& construction_codes() {
  static auto* codes = new std::unordered_set<const PyCodeObject*>;
  return *codes;
}

}  // namespace

void add_construction_code(PyCodeObject* code) {
  if (construction_codes().insert(code).second) Py_INCREF(code);
}

bool finds_construction() {
  const auto& codes = construction_codes();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  bool found = false;
  while (frame != nullptr && !found) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    found = codes.contains(code);
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
