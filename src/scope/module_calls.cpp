#include "scope/module_calls.h"

#include <pybind11/pybind11.h>

#include "base/python_error.h"
#include "base/torch_private.h"
#include "scope/regions.h"

namespace habana_mp {
namespace {

namespace py = pybind11;

// With the GIL. The objects live for good.
PyObject* surrounded = nullptr;
vectorcallfunc torchs = nullptr;
unsigned needed = 0;
PyTypeObject* policy_hook = nullptr;
PyObject* policy_finder = nullptr;
ModuleWatch watch{};

bool is_needed_for(ModuleCalls who) { return (needed & static_cast<unsigned>(who)) != 0; }

class Watched {
 public:
  explicit Watched(PyObject* module)
      : module_(is_needed_for(ModuleCalls::Watched) ? module : nullptr) {
    if (module_ != nullptr) watch.enter(module_);
  }
  ~Watched() {
    if (module_ != nullptr) watch.leave(module_);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  PyObject* const module_;  // alive: it is an argument of the call
};

py::object own_hook(PyObject* module) {
  static PyObject* name = PyUnicode_InternFromString("_forward_pre_hooks");
  const auto hooks = py::reinterpret_steal<py::object>(PyObject_GetAttr(module, name));
  if (!hooks) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
    PyErr_Clear();  // of a class that does not call Module.__init__
    return {};
  }
  if (!PyDict_Check(hooks.ptr()) || PyDict_GET_SIZE(hooks.ptr()) == 0) return {};
  Py_ssize_t place = 0;
  PyObject* hook = nullptr;
  while (PyDict_Next(hooks.ptr(), &place, nullptr, &hook) != 0) {
    if (Py_TYPE(hook) == policy_hook) return py::reinterpret_borrow<py::object>(hook);
  }
  return {};
}

py::object hook_of(PyObject* module) {
  py::object hook = is_needed_for(ModuleCalls::Policies) ? own_hook(module) : py::object();
  if (hook || !is_needed_for(ModuleCalls::Found) || policy_finder == nullptr) return hook;
  hook = py::reinterpret_steal<py::object>(PyObject_CallOneArg(policy_finder, module));
  if (!hook) throw py::error_already_set();
  return hook.is_none() ? py::object() : hook;
}

bool has_body(PyObject* result) { return PyGen_CheckExact(result) || PyCoro_CheckExact(result); }

PyObject* call(PyObject* function, PyObject* const* args, std::size_t nargsf, PyObject* names) {
  const auto run = [&] { return torchs(function, args, nargsf, names); };
  if (PyVectorcall_NARGS(nargsf) == 0) return run();
  try {
    const Watched watched(args[0]);
    const py::object hook = hook_of(args[0]);
    autocast::AllLeft all_left;
    PyObject* result = nullptr;
    if (!hook) {
      result = run();
    } else if (const py::object region = hook.attr("region")(); region.is_none()) {
      result = run();
    } else {
      const autocast::InsideRegion inside(region.cast<const autocast::Region&>());
      result = run();
    }
    if (result == nullptr) return nullptr;
    all_left.succeed();
    if (!hook || !has_body(result)) return result;
    return hook.attr("inside")(py::reinterpret_steal<py::object>(result)).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

}  // namespace

void surround_module_calls(PyObject* call_impl, ModuleCalls who, bool on) {
  const unsigned before = needed;
  needed = on ? needed | static_cast<unsigned>(who) : needed & ~static_cast<unsigned>(who);
  if ((before == 0) == (needed == 0)) return;
  if (surrounded == nullptr) {
    surrounded = Py_NewRef(call_impl);
    torchs = PyVectorcall_Function(call_impl);
  }
  torch_private::set_vectorcall(surrounded, needed != 0 ? call : torchs);
}

void set_policy_hook(PyTypeObject* type) { policy_hook = type; }

void set_policy_finder(PyObject* finder) {
  Py_XINCREF(finder);
  Py_XSETREF(policy_finder, finder);
}

void set_module_watch(ModuleWatch of) { watch = of; }

}  // namespace habana_mp
