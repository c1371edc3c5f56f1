#include "convert/patch_set.h"

#include <exception>

#include "base/process_wide.h"

namespace habana_mp {
namespace py = pybind11;
namespace {

std::vector<Assignment> assignments_of(const py::iterable& rows) {
  std::vector<Assignment> assignments;
  for (const py::handle row : rows) {
    const auto fields = py::reinterpret_borrow<py::tuple>(row);
    const bool named = fields.size() > 3;
    assignments.push_back({fields[0], fields[1], fields[2],
                           named ? py::object(fields[3]) : py::object(),
                           named ? Undo::Named : Undo::Found});
  }
  return assignments;
}

void assign(const py::object& owner, const py::object& name, const py::object& value) {
  // PyObject_SetAttr with a null value deletes the name.
  if (PyObject_SetAttr(owner.ptr(), name.ptr(), value.ptr()) < 0) throw py::error_already_set();
}

// The value in the owner's own __dict__, null where it only inherits the name or has nothing.
py::object own_value(const py::object& owner, const py::object& name) {
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
    const py::object now = own_value(made.owner, made.name);
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
      if (next.undo == Undo::Found) next.before = own_value(next.owner, next.name);
      ++begun;  // an assignment that fails may have been made all the same
      assign(next.owner, next.name, next.value);
    }
  } catch (...) {
    undo(assignments, begun);
    throw;
  }
}

// Makes again what was just undone, as far as it was. It keeps the recorded `before`: where undoing
// failed, the owner still holds our value.
void make_again(const std::vector<Assignment>& assignments) {
  std::exception_ptr error;  // of less interest than the one that led here
  for (const Assignment& next : assignments) {
    insist(error, [&] { assign(next.owner, next.name, next.value); });
  }
}

}  // namespace

void PatchSet::install(const py::iterable& rows) {
  std::vector<Assignment> assignments = assignments_of(rows);
  if (suspended_ == 0) {
    try {
      if (const auto error = undo(assignments_)) std::rethrow_exception(error);
      make(assignments);
    } catch (...) {
      make_again(assignments_);
      throw;
    }
  }
  assignments_.swap(assignments);
}

void PatchSet::uninstall() {
  const auto error = suspended_ == 0 ? undo(assignments_) : nullptr;
  forget();
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
      forget();  // none of it could be made
    }
    std::rethrow_exception(first);
  }
}

int PatchSet::traverse(visitproc visit, void* arg) const {
  for (const Assignment& each : assignments_) {
    Py_VISIT(each.owner.ptr());
    Py_VISIT(each.name.ptr());
    Py_VISIT(each.value.ptr());
    Py_VISIT(each.before.ptr());
  }
  return 0;
}

void PatchSet::forget() {
  // Freeing an object may run Python code or the garbage collector, which must not see the set half
  // cleared.
  std::vector<Assignment> gone;
  gone.swap(assignments_);
}

PatchSet& conversion_patches() { return process_wide<PatchSet>(); }

}  // namespace habana_mp
