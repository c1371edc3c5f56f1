// Whether casts are off on a thread, for Python: disable_casts, and the construction of modules.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <vector>

#include "base/run_in_c.h"
#include "bind/bind.h"
#include "call/error_note.h"
#include "scope/casts_off.h"
#include "scope/construction.h"
#include "scope/regions.h"
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
  // A loop may have changed weights in there, in C++ perhaps, unseen by the cache.
  if (before_disabled.empty()) weight_cache().end_all(Ended::DisableCasts);
}

PyObject* enter_block(PyObject* const*, Py_ssize_t) {
  enter_disabled();
  Py_RETURN_NONE;
}

// (block, type of an exception, exception, traceback)
PyObject* exit_block(PyObject* const* args, Py_ssize_t count) {
  if (count > 2 && PyObject_IsInstance(args[2], PyExc_RuntimeError) == 1) {
    add_note_at_end(py::reinterpret_borrow<py::object>(args[2]), autocast::policy_here(),
                    /*casts_off=*/true);
  }
  exit_disabled();
  Py_RETURN_NONE;
}

}  // namespace

void bind_scope(py::module_& module) {
  module.def("casts_off", [] { return casts_off(); });
  module.def("set_casts_off", &set_casts_off);
  module.def("enter_disabled", &enter_disabled);
  module.def("exit_disabled", &exit_disabled);
  module.def("begin_construction", [] { may_construct = true; });
  module.def(
      "add_construction_code",
      [](const py::object& code, const py::object& of) {
        if (!PyCode_Check(code.ptr())) throw py::type_error("must be a code object");
        add_construction_code(reinterpret_cast<PyCodeObject*>(code.ptr()),
                              of.is_none() ? nullptr : of.ptr());
      },
      py::arg("code"), py::arg("of"));
  module.def("run_disable_casts_in_c", [](const py::function& enter, const py::function& exit) {
    run_in_c<enter_block>(enter);
    run_in_c<exit_block>(exit);
  });
}

}  // namespace habana_mp
