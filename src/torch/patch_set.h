// Attribute assignments that are made, and undone, all or none.
//
// One call into C runs without a signal handler or another Python thread in between, so an
// interrupt leaves either all of the conversion in force or none of it.
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
  // Undoes what is installed, then makes `assignments`. If one of them fails, all is as it was
  // before the call, and the Python error of the failure is thrown.
  void install(std::vector<Assignment> assignments);
  void uninstall();
  // Out of the way around code that must find the originals, until as many resumes. What is
  // installed meanwhile is made at the last.
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
