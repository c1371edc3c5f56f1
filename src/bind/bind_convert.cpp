// Patched ops, the set of patches in force, and the casts-off state, for Python.
#include <pybind11/stl.h>

#include "bind/bind.h"
#include "base/run_in_c.h"
#include "scope/casts_off.h"
#include "watch/observer.h"
#include "base/patch_set.h"
#include "convert/patched_op.h"
#include "autocast/catalogue.h"
#include "weights/weight_cache.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

// What held on this thread before each disable_casts that it is inside.
thread_local std::vector<bool> before_disabled;

void enter_disabled() {
  before_disabled.push_back(casts_off());
  set_casts_off(true);
}

void exit_disabled() {
  if (before_disabled.empty()) {
    throw std::runtime_error(
        "disable_casts was left more often than it was entered on this thread");
  }
  set_casts_off(before_disabled.back());
  before_disabled.pop_back();
  // What a loop does with its weights in there, in C++ perhaps, need not have told anybody.
  if (before_disabled.empty()) weight_cache().end_all(Ended::DisableCasts);
}

template <void (*function)()>
PyObject* in_c(PyObject*) {
  function();
  Py_RETURN_NONE;
}

// Rows of (owner, name, value), or (owner, name, value, before) where the owner's __dict__ does not
// tell what was before.
std::vector<Assignment> assignments_of(const py::iterable& rows) {
  std::vector<Assignment> assignments;
  for (const py::handle row : rows) {
    const auto fields = py::reinterpret_borrow<py::tuple>(row);
    const bool given = fields.size() > 3;
    assignments.push_back({fields[0], fields[1], fields[2],
                           given ? py::object(fields[3]) : py::object(),
                           given ? Undo::Given : Undo::Found});
  }
  return assignments;
}

}  // namespace

void bind_patched_op(py::module_& module) {
  module.attr("PatchedFunctionBase") =
      py::reinterpret_steal<py::object>(Py_NewRef(patched_function_type()));
  module.attr("PatchedMethodBase") =
      py::reinterpret_steal<py::object>(Py_NewRef(patched_method_type()));
  module.def("enable_vectorcall", [](const py::object& type) {
    if (!enable_vectorcall(type.ptr())) throw py::error_already_set();
  });

  module.def(
      "install",
      [](const py::iterable& rows, const Policy& policy) {
        patch_set().install(assignments_of(rows));
        watch::renew_conversion(&policy);
      },
      py::arg("rows"), py::arg("policy"));
  module.def("uninstall", [] {
    patch_set().uninstall();
    watch::renew_conversion(nullptr);
  });
  module.def("suspend", [] { patch_set().suspend(); });
  module.def("resume", [] { patch_set().resume(); });
  module.def("is_installed", [] { return patch_set().installed(); });

  module.def("casts_off", [] { return casts_off(); });
  module.def("set_casts_off", &set_casts_off);
  module.def("enter_disabled", &enter_disabled);
  module.def("exit_disabled", &exit_disabled);
  module.def("run_disable_casts_in_c", [](const py::function& enter, const py::function& exit) {
    run_in_c<in_c<enter_disabled>>(enter);
    run_in_c<in_c<exit_disabled>>(exit);
  });

  module.def("aten_tensor_arguments", &aten_tensor_arguments);
}

}  // namespace habana_mp
