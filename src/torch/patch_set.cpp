#include "torch/patch_set.h"

#include <utility>

namespace habana_mp {
namespace py = pybind11;
namespace {

void assign(const py::object& owner, const py::object& name, const py::object& value) {
  // PyObject_SetAttr with a null value deletes the name.
  if (PyObject_SetAttr(owner.ptr(), name.ptr(), value.ptr()) < 0) throw py::error_already_set();
}

// What the owner itself holds under the name, null where it only inherits it or has nothing.
py::object held(const py::object& owner, const py::object& name) {
  const py::object own = owner.attr("__dict__");
  PyObject* value = PyObject_GetItem(own.ptr(), name.ptr());
  if (value == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
}

// Last made, first undone, so that a name assigned twice ends as it began.
void undo(const std::vector<Assignment>& assignments, std::size_t made) {
  while (made > 0) {
    const Assignment& last = assignments[--made];
    // Somebody else may have deleted the name in the meantime.
    if (last.before || held(last.owner, last.name)) assign(last.owner, last.name, last.before);
  }
}

void make(std::vector<Assignment>& assignments) {
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    try {
      if (assignments[i].undo == Undo::Found)
        assignments[i].before = held(assignments[i].owner, assignments[i].name);
      assign(assignments[i].owner, assignments[i].name, assignments[i].value);
    } catch (py::error_already_set&) {
      undo(assignments, i);
      throw;
    }
  }
}

}  // namespace

void PatchSet::install(std::vector<Assignment> assignments) {
  if (suspended_ == 0) {
    undo(assignments_, assignments_.size());
    try {
      make(assignments);
    } catch (py::error_already_set&) {
      make(assignments_);
      throw;
    }
  }
  assignments_ = std::move(assignments);
}

void PatchSet::uninstall() {
  if (suspended_ == 0) undo(assignments_, assignments_.size());
  assignments_.clear();
}

void PatchSet::suspend() {
  if (suspended_++ == 0) undo(assignments_, assignments_.size());
}

void PatchSet::resume() {
  if (--suspended_ == 0) make(assignments_);
}

PatchSet& patch_set() {
  static auto* set =
      new PatchSet;  // never destroyed: its objects must not outlive the interpreter's end
  return *set;
}

}  // namespace habana_mp
