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
PyObject* tensor_tuple(const Arguments& arguments, PyObject* const* args) {
  const std::span<PyObject* const> others = arguments.overriders();
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(arguments.size() + others.size()));
  if (tuple == nullptr) return nullptr;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const FoundTensor& tensor = arguments.tensor(i);
    PyObject* value = args[tensor.argument];
    if (tensor.item >= 0) {
      // Checked: a cast of another argument may have run code that shortened the list.
      value = PyList_Check(value) ? PyList_GetItem(value, tensor.item)
                                  : PyTuple_GetItem(value, tensor.item);
    }
    if (value == nullptr) {
      Py_DECREF(tuple);
      return nullptr;
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), Py_NewRef(value));
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(arguments.size() + i), Py_NewRef(others[i]));
  }
  return tuple;
}

// 1 if a mode or a subclass among the tensors overrides the op, 0 if none does, -1 with a Python
// error set.
int has_overrides(const CallForm& form, const Arguments& arguments, PyObject* tensors) {
  if (!form.overridable) return 0;
  if (torch_private::in_function_mode()) return 1;
  if (!arguments.overridden()) return 0;
  static PyObject* has_torch_function = module_attribute("torch.overrides", "has_torch_function");
  PyObject* answer = PyObject_CallOneArg(has_torch_function, tensors);
  if (answer == nullptr) return -1;
  const int truth = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

// What __torch_function__ gets: what torch has under the op's name, as torch's own look-up by name
// would find it, so that `func is F.linear` holds. It equals the original, which a table made
// before the conversion has. A new reference.
PyObject* override_argument(const PatchedOp& op) {
  if (op.override_function == op.original)
    return Py_NewRef(reinterpret_cast<PyObject*>(const_cast<PatchedOp*>(&op)));
  PyObject* name = PyObject_GetAttrString(op.override_function, "__name__");
  if (name == nullptr) return nullptr;
  PyObject* function = PyObject_GetAttr(THPVariableClass, name);
  Py_DECREF(name);
  return function;
}

// The op that this thread has just passed to __torch_function__. When it is called from there, the
// listeners have been called already.
thread_local const PyObject* overriding = nullptr;

// Whether torch.overrides failed to say that nobody implements the op: it names the op by its
// __module__, which methods lack.
bool is_unnamed_refusal(PyObject* function) {
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  PyObject* object = PyObject_GetAttrString(error, "obj");
  const bool is_function = object == function;
  if (object == nullptr) PyErr_Clear();
  Py_XDECREF(object);
  PyErr_Restore(type, error, traceback);
  return is_function;
}

// Has __torch_function__ of a mode or of the `relevant` arguments do the call.
PyObject* call_overrider(const PatchedOp& op, PyObject* relevant, PyObject* const* args,
                         std::size_t nargsf, PyObject* kwnames) {
  static PyObject* handle = module_attribute("torch.overrides", "handle_torch_function");
  const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
  const Py_ssize_t named = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  PyObject* function = override_argument(op);
  if (function == nullptr) return nullptr;
  const py::object keep = py::reinterpret_steal<py::object>(function);
  c10::SmallVector<PyObject*, 12> stack{function, relevant};
  stack.append(args, args + positional + named);
  overriding = function;
  PyObject* result =
      PyObject_Vectorcall(handle, stack.data(), static_cast<std::size_t>(positional + 2), kwnames);
  overriding = nullptr;
  if (result != nullptr) return result;
  if (is_unnamed_refusal(function)) {
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

// The function of a class's __torch_function__. A new reference, null with a Python error set.
PyObject* torch_function_of(PyObject* type) {
  PyObject* method = PyObject_GetAttrString(type, "__torch_function__");
  if (method == nullptr || !PyMethod_Check(method)) return method;
  PyObject* function = Py_NewRef(PyMethod_GET_FUNCTION(method));
  Py_DECREF(method);
  return function;
}

}  // namespace

bool only_torch_sees(const Arguments& arguments) {
  if (torch_private::in_function_mode() || !arguments.overriders().empty()) return false;
  if (!arguments.overridden()) return true;
  static PyObject* of_tensor = torch_function_of(THPVariableClass);
  static PyObject* disabled = module_attribute("torch._C", "_disabled_torch_function_impl");
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    PyObject* tensor = arguments.tensor(i).object;
    if (THPVariable_CheckExact(tensor)) continue;
    PyObject* function = torch_function_of(reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
    const bool own = function != of_tensor && function != disabled;
    if (function == nullptr) PyErr_Clear();
    Py_XDECREF(function);
    if (own) return false;
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
  if (op.form.compound && !op.rule.listed && !off && only_torch_sees(arguments)) {
    inside.emplace(autocast::Unpatched::Compound);
  }
  if (!maybe_overridden) return PyObject_Vectorcall(op.original, args, nargsf, kwnames);

  PyObject* tensors = tensor_tuple(arguments, args);
  if (tensors == nullptr) return nullptr;
  const int overridden = has_overrides(op.form, arguments, tensors);
  PyObject* result = nullptr;
  if (overridden == 0) {
    result = PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  } else if (overridden > 0) {
    result = call_overrider(op, tensors, args, nargsf, kwnames);
  }
  Py_DECREF(tensors);
  return result;
}

bool take_from_override(const PatchedOp& op) {
  const bool taken = overriding == reinterpret_cast<const PyObject*>(&op);
  overriding = nullptr;
  return taken;
}

}  // namespace habana_mp
