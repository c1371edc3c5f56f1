// Patched ops and the set of patches in force, for Python.
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/patch_set.h"
#include "bind/bind.h"
#include "call/refusal.h"
#include "convert/patched_type.h"
#include "policy/policy.h"
#include "watch/dispatcher_watch.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

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

void bind_convert(py::module_& module) {
  module.attr("PatchedFunctionBase") =
      py::reinterpret_steal<py::object>(Py_NewRef(patched_function_type()));
  module.attr("PatchedMethodBase") =
      py::reinterpret_steal<py::object>(Py_NewRef(patched_method_type()));
  module.def("enable_vectorcall", [](const py::object& type) {
    if (!enable_vectorcall(type.ptr())) throw py::error_already_set();
  });

  module.def(
      "install",
      [](const py::iterable& rows, std::shared_ptr<Policy> policy) {
        patch_set().install(assignments_of(rows));
        watch::set_conversion(std::move(policy));
      },
      py::arg("rows"), py::arg("policy"));
  module.def("uninstall", [] {
    patch_set().uninstall();
    watch::set_conversion(nullptr);
  });
  module.def("suspend", [] { patch_set().suspend(); });
  module.def("resume", [] { patch_set().resume(); });
  module.def("is_installed", [] { return patch_set().installed(); });
  module.def("refusal", &refusal, py::arg("op"), py::arg("rule"));
}

}  // namespace habana_mp
