// The modules whose forward a thread is in, for the report: which of them an op belongs to.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <vector>

namespace habana_mp::watch {

class ModuleStack {
 public:
  // The number of the path of the innermost one (number_of), 0 outside of modules.
  std::uint32_t path() const { return entries_.empty() ? 0 : entries_.back().path; }

  // A call of a module begins and ends (scope/module_calls.h). With the GIL.
  void enter(PyObject* module);
  void leave(PyObject* module);

  void clear() { entries_.clear(); }

 private:
  struct Entry {
    PyObject* object;  // alive: it is being called
    std::uint32_t path;
  };

  PyObject* innermost() const { return entries_.empty() ? nullptr : entries_.back().object; }
  std::uint32_t known_path(PyObject* module) const;
  std::uint32_t find_path(PyObject* module) const;

  std::vector<Entry> entries_;
};

// What is known of modules by then, when nobody watches any more. With the GIL.
void forget_modules();

}  // namespace habana_mp::watch
