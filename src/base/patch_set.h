// Attribute assignments that are made, and undone, all or none.
//
// All of them happen in one call into C, where no signal handler runs between two of them. It may
// run inside one: an owner whose __setattr__ is Python code (torch.compiler.config) can raise
// KeyboardInterrupt, or anything else, from an assignment. So an error never ends the work halfway:
// it is thrown when all assignments are made or undone.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

namespace habana_mp {

// How an assignment is undone: by what the owner's __dict__ held when it was made (nothing: the
// name is deleted), or by a value given.
enum class Undo { Found, Given };

struct Assignment {
  pybind11::object owner;  // module, class or instance
  pybind11::object name;
  pybind11::object value;
  pybind11::object before;  // what undoing assigns
  Undo undo = Undo::Found;
};

class PatchSet {
 public:
  // Undoes what is installed, then makes `assignments`. If one of them fails, or undoing does, all
  // is as it was before the call, and the Python error of the failure is thrown.
  void install(std::vector<Assignment> assignments);
  // Nothing is installed afterwards, even if it throws the first error of the assignments undone.
  void uninstall();
  // Out of the way around code that must find the originals, until as many resumes. What is
  // installed meanwhile is made at the last. A suspend that throws needs no resume.
  void suspend();
  void resume();
  bool installed() const { return !assignments_.empty(); }

 private:
  std::vector<Assignment> assignments_;
  int suspended_ = 0;
};

// The one set in force (D7: a second conversion replaces the first).
PatchSet& patch_set();

}  // namespace habana_mp
