// A set of patches for Python code that patches torch apart from a conversion.
#include "base/patch_set.h"
#include "bind/bind.h"

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

void bind_patch_set(py::module_& module) {
  py::class_<PatchSet>(module, "PatchSet", py::custom_type_setup(collect_garbage), py::is_final())
      .def(py::init<>())
      .def("install", &PatchSet::install, py::arg("rows"),
           "Make the assignments of rows (owner, name, value), all or none, in place of what is "
           "installed")
      .def("uninstall", &PatchSet::uninstall, "Undo them, the last first")
      .def("suspend", &PatchSet::suspend, "Undo them until as many calls of resume")
      .def("resume", &PatchSet::resume)
      .def("installed", &PatchSet::installed);
}

}  // namespace habana_mp
