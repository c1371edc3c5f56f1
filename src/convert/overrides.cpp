#include "convert/overrides.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "base/module_attribute.h"
#include "base/torch_private.h"
#include "scope/casts_off.h"
#include "scope/compound.h"

namespace habana_mp {
namespace {

// The tensors of a call as it will be made, and what stands in for tensors, for __torch_function__.
py::tuple tensor_tuple(const Arguments& arguments, PyObject* const* args) {
  py::list found;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const FoundTensor& tensor = arguments.tensor(i);
    PyObject* value = args[tensor.argument];
    if (tensor.item >= 0) {
      // Checked: a cast of another argument may have run code that shortened the list.
      value = PyList_Check(value) ? PyList_GetItem(value, tensor.item)
                                  : PyTuple_GetItem(value, tensor.item);
    }
    if (value == nullptr) throw py::error_already_set();
    found.append(py::handle(value));
  }
  for (PyObject* other : arguments.overriders()) found.append(py::handle(other));
  return py::tuple(found);
}

// Whether a mode or a subclass among the tensors overrides the op.
bool has_overrides(const CallForm& form, const Arguments& arguments, const py::tuple& tensors) {
  if (!form.overridable) return false;
  if (torch_private::in_function_mode()) return true;
  if (!arguments.overridden()) return false;
  static PyObject* has_torch_function = module_attribute("torch.overrides", "has_torch_function");
  return py::bool_(py::handle(has_torch_function)(tensors));
}

// What __torch_function__ gets: what torch has under the op's name, as torch's own look-up by name
// would find it, so that `func is F.linear` holds. It equals the original, which a table made
// before the conversion has.
py::object override_argument(const PatchedOp& op) {
  if (op.override_function == op.original)
    return py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject*>(const_cast<PatchedOp*>(&op)));
  const py::object name = py::handle(op.override_function).attr("__name__");
  return py::handle(THPVariableClass).attr(name);
}

// The op that this thread has just passed to __torch_function__. When it is called from there, the
// listeners have been called already.
thread_local const PyObject* overriding = nullptr;

// Whether torch.overrides failed to say that nobody implements the op: it names the op by its
// __module__, which methods lack.
bool is_unnamed_refusal(const py::error_already_set& error, const py::object& function) {
  return error.matches(PyExc_AttributeError) &&
         py::getattr(error.value(), "obj", py::none()).is(function);
}

// Has __torch_function__ of a mode or of the `relevant` arguments do the call.
PyObject* call_overrider(const PatchedOp& op, const py::tuple& relevant, PyObject* const* args,
                         std::size_t nargsf, PyObject* kwnames) {
  static PyObject* handle = module_attribute("torch.overrides", "handle_torch_function");
  const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
  const Py_ssize_t named = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  const py::object function = override_argument(op);
  c10::SmallVector<PyObject*, 12> stack{function.ptr(), relevant.ptr()};
  stack.append(args, args + positional + named);
  overriding = function.ptr();
  PyObject* result =
      PyObject_Vectorcall(handle, stack.data(), static_cast<std::size_t>(positional + 2), kwnames);
  overriding = nullptr;
  if (result != nullptr) return result;
  py::error_already_set error;
  if (!is_unnamed_refusal(error, function)) {
    error.restore();
  } else {
    PyErr_Format(PyExc_TypeError,
                 "no implementation found for %R on types that implement __torch_function__",
                 op.override_function);
  }
  // As in torch's operators: Python then asks the other operand.
  if (op.override_function != op.original && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    return Py_NewRef(Py_NotImplemented);
  }
  return nullptr;
}

// The function of a class's __torch_function__.
py::object torch_function_of(PyObject* type) {
  const py::object method = py::getattr(type, "__torch_function__", py::none());
  return PyMethod_Check(method.ptr())
             ? py::reinterpret_borrow<py::object>(PyMethod_GET_FUNCTION(method.ptr()))
             : method;
}

}  // namespace

bool only_torch_sees(const Arguments& arguments) {
  if (torch_private::in_function_mode() || !arguments.overriders().empty()) return false;
  if (!arguments.overridden()) return true;
  static PyObject* of_tensor = torch_function_of(THPVariableClass).release().ptr();
  static PyObject* disabled = module_attribute("torch._C", "_disabled_torch_function_impl");
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    PyObject* tensor = arguments.tensor(i).object;
    if (THPVariable_CheckExact(tensor)) continue;
    const py::object function = torch_function_of(reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
    if (function.ptr() != of_tensor && function.ptr() != disabled) return false;
  }
  return true;
}

PyObject* call_original(const PatchedOp& op, const Arguments& arguments, PyObject* const* args,
                        std::size_t nargsf, PyObject* kwnames) {
  const bool maybe_overridden = arguments.overridden() || torch_private::in_function_mode();
  const bool off = is_off(op);
  // Where a region acts in place of convert, what is atomic is for its policy to say.
  const CastsOffGuard guard(is_atomic(op) && (op.form.python || maybe_overridden) && !off);
  std::optional<autocast::InsideUnpatched> inside;
  // What is in 8 bits is computed at the dispatcher.
  const bool compound = (op.form.compound && !op.rule.listed) || is_int8(op.rule.action);
  if (compound && !off && only_torch_sees(arguments)) {
    inside.emplace(autocast::Unpatched::Compound);
  }
  if (!maybe_overridden) return PyObject_Vectorcall(op.original, args, nargsf, kwnames);

  try {
    const py::tuple tensors = tensor_tuple(arguments, args);
    return has_overrides(op.form, arguments, tensors)
               ? call_overrider(op, tensors, args, nargsf, kwnames)
               : PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

bool take_from_override(const PatchedOp& op) {
  const bool taken = overriding == reinterpret_cast<const PyObject*>(&op);
  overriding = nullptr;
  return taken;
}

}  // namespace habana_mp
