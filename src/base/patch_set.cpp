#include "base/patch_set.h"

#include <exception>
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

// Runs a step, and once more if it fails: an interrupt comes once. Keeps the first error.
template <typename Step>
void insist(std::exception_ptr& first, const Step& step) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      return step();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
}

void undo_one(const Assignment& made) {
  if (made.undo == Undo::Found) {
    // Never made, or somebody else has deleted or restored the name in the meantime.
    const py::object now = held(made.owner, made.name);
    if (now.is(made.before)) return;
  }
  assign(made.owner, made.name, made.before);
}

// Last made, first undone, so that a name assigned twice ends as it began. Returns the first error.
std::exception_ptr undo(const std::vector<Assignment>& assignments, std::size_t made) {
  std::exception_ptr error;
  while (made > 0) {
    --made;
    insist(error, [&] { undo_one(assignments[made]); });
  }
  return error;
}

std::exception_ptr undo(const std::vector<Assignment>& assignments) {
  return undo(assignments, assignments.size());
}

void make(std::vector<Assignment>& assignments) {
  std::size_t begun = 0;
  try {
    for (Assignment& next : assignments) {
      if (next.undo == Undo::Found) next.before = held(next.owner, next.name);
      ++begun;  // an assignment that fails may have been made all the same
      assign(next.owner, next.name, next.value);
    }
  } catch (...) {
    undo(assignments, begun);
    throw;
  }
}

// Makes again what was just undone, as far as it was. What was before is known: where undoing
// failed, the owner no longer tells it.
void make_again(const std::vector<Assignment>& assignments) {
  std::exception_ptr error;  // of less interest than the one that led here
  for (const Assignment& next : assignments) {
    insist(error, [&] { assign(next.owner, next.name, next.value); });
  }
}

}  // namespace

void PatchSet::install(std::vector<Assignment> assignments) {
  if (suspended_ == 0) {
    try {
      if (const auto error = undo(assignments_)) std::rethrow_exception(error);
      make(assignments);
    } catch (...) {
      make_again(assignments_);
      throw;
    }
  }
  assignments_ = std::move(assignments);
}

void PatchSet::uninstall() {
  const auto error = suspended_ == 0 ? undo(assignments_) : nullptr;
  assignments_.clear();
  if (error) std::rethrow_exception(error);
}

void PatchSet::suspend() {
  if (suspended_ == 0) {
    if (const auto error = undo(assignments_)) {
      make_again(assignments_);
      std::rethrow_exception(error);
    }
  }
  ++suspended_;
}

void PatchSet::resume() {
  if (--suspended_ > 0) return;
  try {
    make(assignments_);
  } catch (...) {
    const auto first = std::current_exception();
    try {
      make(assignments_);
    } catch (...) {
      assignments_.clear();  // none of it could be made
    }
    std::rethrow_exception(first);
  }
}

PatchSet& patch_set() {
  static auto* set =
      new PatchSet;  // never destroyed: its objects must not outlive the interpreter's end
  return *set;
}

}  // namespace habana_mp
