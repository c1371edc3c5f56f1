// Whether casts are off on a thread, for Python: disable_casts, and the construction of modules;
// and what holds inside calls of modules.

#include <stdexcept>
#include <string>
#include <vector>

#include "base/run_in_c.h"
#include "bind/module.h"
#include "call/errors.h"
#include "scope/casts_off.h"
#include "scope/construction.h"
#include "scope/module_calls.h"
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

// What held before each block that this thread is in which switches casts off or on.
thread_local std::vector<bool> before_switched;

PyObject* enter_switched(PyObject* const* args, Py_ssize_t) {
  static PyObject* name = PyUnicode_InternFromString("off");
  const auto off = py::reinterpret_steal<py::object>(PyObject_GetAttr(args[0], name));
  if (!off) throw py::error_already_set();
  before_switched.push_back(casts_off());
  set_casts_off(off.ptr() == Py_True);
  Py_RETURN_NONE;
}

PyObject* exit_switched(PyObject* const*, Py_ssize_t) {
  if (before_switched.empty()) throw std::runtime_error("casts were not switched on this thread");
  set_casts_off(before_switched.back());
  before_switched.pop_back();
  Py_RETURN_NONE;
}

// torch.autocast(enabled=False) in a module (habana_mp/_scope/torch_autocast.py): what its Python
// code has found is put in force, and put back, without a signal in between.
PyObject* begin_torchs = nullptr;  // (region) -> (result, entry or None, entries of the thread)
PyObject* end_torchs = nullptr;    // (entry or None, region, exception...) -> result
PyObject* torchs_entered =
    nullptr;  // the threads' entries: (region, whether casts were off or None, ...)

PyObject* enter_torchs(PyObject* const* args, Py_ssize_t) {
  const auto begun = py::reinterpret_steal<py::tuple>(PyObject_CallOneArg(begin_torchs, args[0]));
  if (!begun) throw py::error_already_set();
  const py::object entry = begun[1];
  if (!entry.is_none()) {
    begun[2].cast<py::list>().append(entry);
    if (!py::tuple(entry)[1].is_none()) set_casts_off(true);
  }
  return py::object(begun[0]).release().ptr();
}

PyObject* exit_torchs(PyObject* const* args, Py_ssize_t count) {
  const py::list entered = py::handle(torchs_entered).attr("entered");
  py::object found = py::none();
  for (std::size_t i = entered.size(); i-- > 0;) {
    const py::tuple entry = entered[i];
    if (PyTuple_GET_ITEM(entry.ptr(), 0) != args[0]) continue;
    found = entry;
    if (PyList_SetSlice(entered.ptr(), static_cast<Py_ssize_t>(i), static_cast<Py_ssize_t>(i) + 1,
                        nullptr) != 0)
      throw py::error_already_set();
    if (!entry[1].is_none()) set_casts_off(entry[1].ptr() == Py_True);
    break;
  }
  std::vector<PyObject*> all{found.ptr()};
  all.insert(all.end(), args, args + count);
  return PyObject_Vectorcall(end_torchs, all.data(), all.size(), nullptr);
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
  module.def("run_switch_in_c", [](const py::function& enter, const py::function& exit) {
    run_in_c<enter_switched>(enter);
    run_in_c<exit_switched>(exit);
  });
  module.def("run_torchs_in_c", [](const py::function& enter, const py::function& exit,
                                   py::object begin, py::object end, py::object entered) {
    begin_torchs = begin.release().ptr();
    end_torchs = end.release().ptr();
    torchs_entered = entered.release().ptr();
    run_in_c<enter_torchs>(enter);
    run_in_c<exit_torchs>(exit);
  });
  module.def(
      "surround_module_calls",
      [](const py::function& call_impl, const std::string& who, bool on) {
        if (!PyFunction_Check(call_impl.ptr())) throw py::type_error("must be a Python function");
        const auto needs = who == "policies"  ? ModuleCalls::Policies
                           : who == "watched" ? ModuleCalls::Watched
                                              : ModuleCalls::Found;
        surround_module_calls(call_impl.ptr(), needs, on);
      },
      py::arg("call_impl"), py::arg("who"), py::arg("on"), "who: policies, watched or found");
  module.def(
      "set_policy_hook",
      [](const py::type& type) {
        set_policy_hook(reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr()));
      },
      py::arg("type"));
  module.def(
      "set_policy_finder",
      [](const py::object& finder) {
        set_policy_finder(finder.is_none() ? nullptr : finder.ptr());
      },
      py::arg("finder"));
}

}  // namespace habana_mp
