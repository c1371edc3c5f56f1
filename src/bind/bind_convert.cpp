// Patched ops, the patches of the conversion in force, and sets of patches for Python code that
// patches torch apart from it.
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "bind/module.h"
#include "call/errors.h"
#include "call/packed_call.h"
#include "convert/low_results.h"
#include "convert/patch_set.h"
#include "convert/patched_type.h"
#include "policy/policy.h"
#include "scope/casts_off.h"
#include "scope/compound.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

// The set of a Python object, null before its __init__ has run.
PatchSet* set_of(PyObject* object) {
  return py::detail::is_holder_constructed(object) ? py::cast<PatchSet*>(py::handle(object))
                                                   : nullptr;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  const PatchSet* set = set_of(object);
  return set == nullptr ? 0 : set->traverse(visit, arg);
}

int clear(PyObject* object) {
  if (PatchSet* set = set_of(object)) set->forget();
  return 0;
}

void collect_garbage(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
}

}  // namespace

void bind_convert(py::module_& module) {
  py::class_<PatchSet>(module, "PatchSet", py::custom_type_setup(collect_garbage), py::is_final())
      .def(py::init<>())
      .def("install", &PatchSet::install, py::arg("rows"),
           "Make the assignments of rows (owner, name, value), all or none, in place of what is "
           "installed")
      .def("uninstall", &PatchSet::uninstall, "Undo them, the last first")
      .def("suspend", &PatchSet::suspend, "Undo them until as many calls of resume")
      .def("resume", &PatchSet::resume)
      .def("installed", &PatchSet::installed);

  module.attr("PatchedFunctionBase") = py::handle(patched_function_type());
  module.attr("PatchedMethodBase") = py::handle(patched_method_type());
  module.def("enable_vectorcall", [](const py::object& type) {
    if (!enable_vectorcall(type.ptr())) throw py::error_already_set();
  });

  module.def(
      "install",
      [](const py::iterable& rows, std::shared_ptr<Policy> policy) {
        conversion_patches().install(rows);
        autocast::set_conversion(std::move(policy));
      },
      py::arg("rows"), py::arg("policy"));
  module.def(
      "call_scripted",
      [](const py::object& call, const py::args& args, const py::kwargs& kwargs) {
        std::optional<autocast::InsideUnpatched> inside;
        if (!convert_off()) inside.emplace(autocast::Unpatched::Script);
        return call(*args, **kwargs);
      },
      "Call TorchScript code under the rules of the conversion in force");
  module.def("uninstall", [] {
    autocast::set_conversion(nullptr);
    conversion_patches().uninstall();  // may throw, and nothing is installed then either
  });
  module.def(
      "maker_of",
      [](const py::object& tensor) -> py::object {
        const PatchedOp* op = THPVariable_Check(tensor.ptr()) ? maker_of(tensor.ptr()) : nullptr;
        if (op == nullptr) return py::none();
        return py::make_tuple(*op->name, *op->rule_text);
      },
      py::arg("tensor"),
      "The op, by casts, whose result a tensor is, and its rule; None where it was none of the "
      "last ones of this thread");
  module.attr("conversion_patches") =
      py::cast(&conversion_patches(), py::return_value_policy::reference);
  module.def("refusal", &refusal, py::arg("op"), py::arg("rule"));
  module.def(
      "may_be_recast",
      [](std::string_view op, int to) { return may_be_recast(op, static_cast<DType>(to)); },
      py::arg("op"), py::arg("to"),
      "Whether autocast may cast what convert has cast for a product or a convolution");
  module.def("blames_low_dtype", &blames_low_dtype, py::arg("message"));
  module.def("set_error_note", &set_error_note, py::arg("function"));
}

}  // namespace habana_mp
