// Attribute assignments that are made, and undone, all or none: a conversion has one set of them,
// and what else patches torch has one of its own.
//
// All of them happen in one call into C, where no signal handler runs between two of them. It may
// run inside one: an owner whose __setattr__ is Python code (torch.compiler.config) can raise
// KeyboardInterrupt, or anything else, from an assignment. So an error never ends the work halfway:
// it is thrown when all assignments are made or undone.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

namespace habana_mp {

// What undoing an assignment assigns: what the owner's __dict__ held when it was made (nothing: the
// name is deleted), or a value that the caller names.
enum class Undo { Found, Named };

struct Assignment {
  pybind11::object owner;  // module, class or instance
  pybind11::object name;
  pybind11::object value;
  pybind11::object before;  // what undoing assigns
  Undo undo = Undo::Found;
};

class PatchSet {
 public:
  // Undoes what is installed, then makes the assignments of `rows`: (owner, name, value), or
  // (owner, name, value, before) where the owner's __dict__ does not hold what was before. All rows
  // are read first. If an assignment fails, or undoing one does, all is as it was before the call,
  // and the Python error of the failure is thrown.
  void install(const pybind11::iterable& rows);
  // Nothing is installed afterwards, even if it throws the first error of the assignments undone.
  void uninstall();
  // Undoes what is installed around code that must find the originals, until as many resumes. What
  // is installed meanwhile is made at the last resume. A suspend that throws needs no resume.
  void suspend();
  void resume();
  bool installed() const { return !assignments_.empty(); }

  // For Python's garbage collector: a patch often leads back to whoever holds the set.
  int traverse(visitproc visit, void* arg) const;
  // Forgets the assignments without undoing them.
  void forget();

 private:
  std::vector<Assignment> assignments_;
  int suspended_ = 0;
};

// The set of the conversion in force (D7: a second conversion replaces the first).
PatchSet& conversion_patches();

}  // namespace habana_mp
