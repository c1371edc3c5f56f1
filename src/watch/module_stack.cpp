#include "watch/module_stack.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "base/name_numbers.h"
#include "base/process_wide.h"
#include "watch/where.h"

namespace habana_mp::watch {
namespace {

// The path of a module below what it is called in, found once for each: a weak reference says
// whether it is still that module. Two models may share one and name it differently.
struct KnownModule {
  py::object reference;
  std::uint32_t path;
};

// To be compared, not to be used.
PyObject* referent(const py::object& reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* object = nullptr;
  if (PyWeakref_GetRef(reference.ptr(), &object) > 0) Py_DECREF(object);
  return object;
#else
  return PyWeakref_GetObject(reference.ptr());
#endif
}

// By the module, the one that called it, and the path of that one.
using KnownModules = std::map<std::tuple<PyObject*, PyObject*, std::uint32_t>, KnownModule>;

KnownModules& known_modules() { return process_wide<KnownModules>(); }  // with the GIL

}  // namespace

void forget_modules() { known_modules().clear(); }

// 0 where it is not known yet below the innermost one.
std::uint32_t ModuleStack::known_path(PyObject* module) const {
  const auto found = known_modules().find({module, innermost(), path()});
  if (found == known_modules().end() || referent(found->second.reference) != module) return 0;
  return found->second.path;
}

std::uint32_t ModuleStack::find_path(PyObject* module) const {
  py::list stack;
  for (const Entry& outer : entries_) {
    stack.append(py::reinterpret_borrow<py::object>(outer.object));
  }
  stack.append(py::reinterpret_borrow<py::object>(module));
  const std::string text = path_of(stack);
  const std::uint32_t number = number_of(text);
  auto& known = known_modules();
  if (known.size() >= kMostNames) known.clear();
  known.insert_or_assign({module, innermost(), path()}, KnownModule{py::weakref(module), number});
  return number;
}

void ModuleStack::enter(PyObject* module) {
  const std::uint32_t known = known_path(module);
  entries_.push_back({module, known != 0 ? known : find_path(module)});
}

void ModuleStack::leave(PyObject* module) {
  const auto found = std::find_if(entries_.rbegin(), entries_.rend(),
                                  [&](const Entry& entry) { return entry.object == module; });
  if (found != entries_.rend()) entries_.erase(found.base() - 1, entries_.end());
}

}  // namespace habana_mp::watch
