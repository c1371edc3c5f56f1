// One call of a patched op.
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "base/python_error.h"
#include "base/torch_private.h"
#include "call/errors.h"
#include "call/packed_call.h"
#include "call/weight_ops.h"
#include "cast/numbers.h"
#include "cast/tensors.h"
#include "convert/arguments.h"
#include "convert/cast_arguments.h"
#include "convert/low_results.h"
#include "convert/notify.h"
#include "convert/overrides.h"
#include "convert/patched_op.h"
#include "convert/without_low_kernel.h"
#include "listen/hears.h"
#include "scope/casts_off.h"
#include "scope/compound.h"
#include "scope/construction.h"
#include "scope/state.h"
#include "weights/weight_cache.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

PyObject* as_object(const PatchedOp& op) {
  return const_cast<PyObject*>(reinterpret_cast<const PyObject*>(&op));
}

// Whether the frame that called is torch's own code that says what an op means while torch traces
// it: decompositions, references, meta functions, compiler patterns. They describe the original op;
// a cast among them would change its meaning.
bool called_by_decomposition() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return false;
  PyCodeObject* code = PyFrame_GetCode(frame);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) PyErr_Clear();  // no UTF-8
  const std::string_view path = file == nullptr ? "" : file;
  Py_DECREF(code);
  for (const std::string_view part :
       {"/torch/_decomp/", "/torch/_refs/", "/torch/_prims/", "/torch/_prims_common/",
        "/torch/_meta_registrations.py", "/torch/_subclasses/", "/torch/_inductor/"}) {
    if (path.find(part) != std::string_view::npos) return true;
  }
  return false;
}

PyObject* refuse(const PatchedOp& op) {
  PyErr_SetString(PyExc_RuntimeError, refusal(*op.name, *op.rule_text).c_str());
  return nullptr;
}

// A number, or one for each dimension, of a convolution. None where it is something else: a name of
// a padding, a symbol.
std::optional<c10::SmallVector<std::int64_t, 3>> whole_numbers(PyObject* given) {
  const auto is_number = [](PyObject* value) { return PyLong_CheckExact(value) != 0; };
  c10::SmallVector<std::int64_t, 3> numbers;
  if (is_number(given)) {
    numbers.push_back(PyLong_AsLongLong(given));
  } else if (PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) <= 3) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
      if (!is_number(PyTuple_GET_ITEM(given, i))) return std::nullopt;
      numbers.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(given, i)));
    }
  } else {
    return std::nullopt;
  }
  if (PyErr_Occurred() != nullptr) {  // too large: torch says so
    PyErr_Clear();
    return std::nullopt;
  }
  return numbers;
}

// The call with a packed weight. Null without a Python error where that is not for this call:
// linear(input, weight, bias), addmm(bias, input, weight) and conv2d(input, weight, bias, stride,
// padding, dilation, groups) as modules write them.
PyObject* call_with_packed(const PatchedOp& op, const Arguments& arguments,
                           const Decision& decision, PyObject* const* args, Py_ssize_t positional,
                           PyObject* kwnames) {
  if (kwnames != nullptr || arguments.overridden() || torch_private::in_function_mode() ||
      may_be_recast(*op.name, decision.to)) {
    return nullptr;
  }
  const bool convolution = op.layout == Layout::Convolution;
  const auto is_tensor = [&](Py_ssize_t i) { return THPVariable_CheckTypeExact(Py_TYPE(args[i])); };
  const bool has_third = positional >= 3 && args[2] != Py_None;
  const Py_ssize_t least = op.layout == Layout::Addmm ? 3 : 2;
  if (positional < least || positional > (convolution ? 7 : 3)) return nullptr;
  if (!is_tensor(0) || !is_tensor(1) || (has_third && !is_tensor(2))) return nullptr;
  if (op.layout == Layout::Addmm && !has_third) return nullptr;
  std::array<c10::SmallVector<std::int64_t, 3>, 4> numbers{{{1}, {0}, {1}, {1}}};
  for (Py_ssize_t i = 3; i < positional; ++i) {
    auto given = whole_numbers(args[i]);
    const bool groups = i == 6;
    if (!given || given->empty() || (groups && !PyLong_CheckExact(args[i]))) return nullptr;
    numbers[static_cast<std::size_t>(i - 3)] = std::move(*given);
  }
  HANDLE_TH_ERRORS
  static const at::Tensor none;
  const at::Tensor& third = has_third ? THPVariable_Unpack(args[2]) : none;
  const PackedOperands operands =
      packed_operands(op.layout, THPVariable_Unpack(args[0]), THPVariable_Unpack(args[1]), third,
                      decision.to, WeightCache::Caller::Python);
  at::Tensor result;
  {
    const pybind11::gil_scoped_release no_gil;
    const auto& [stride, padding, dilation, groups] = numbers;
    result = convolution ? packed_convolution(operands, {padding, stride, dilation, groups.front()})
                         : packed_product(op.layout, operands);
  }
  return result.defined() ? THPVariable_Wrap(std::move(result)) : nullptr;
  END_HANDLE_TH_ERRORS
}

// Whether weights of the call may stay as they are in a trace, for an op of ours
// (call/weight_ops.h).
bool is_of_traced_weight(const PatchedOp& op, const Arguments& arguments,
                         const Decision& decision) {
  const auto self = py::reinterpret_borrow<py::object>(as_object(op));
  if (self.attr("weight_op").is_none() || may_be_recast(*op.name, decision.to)) {
    return false;
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (decision.casts(arguments.described()[i]) &&
        is_traced_weight(THPVariable_Unpack(arguments.tensor(i).object))) {
      return true;
    }
  }
  return false;
}

// The call by the rule in Python, as torch.compile traces it.
PyObject* call_in_python(const PatchedOp& op, PyObject* const* args, Py_ssize_t positional,
                         PyObject* kwnames) {
  const auto self = py::reinterpret_borrow<py::object>(as_object(op));
  py::tuple given(positional);
  for (Py_ssize_t i = 0; i < positional; ++i)
    given[static_cast<std::size_t>(i)] = py::handle(args[i]);
  py::dict named;
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    named[py::handle(PyTuple_GET_ITEM(kwnames, i))] = py::handle(args[positional + i]);
  }
  return self.attr("_call")(given, named).release().ptr();
}

// Whether the decision casts something, and something that a tracer sees.
struct ToCast {
  bool any = false;
  bool traced = false;
};

ToCast to_cast(const Arguments& arguments, const Decision& decision) {
  ToCast found;
  for (std::size_t i = 0; i < arguments.size() && decision.cause != Cause::None; ++i) {
    if (!decision.casts(arguments.described()[i])) continue;
    found.any = true;
    found.traced = found.traced || is_traced(arguments.tensor(i).object);
  }
  return found;
}

// The original with casts in place of arguments.
PyObject* call_with_casts(const PatchedOp& op, const Arguments& arguments, const Decision& decision,
                          PyObject* const* args, Py_ssize_t positional, PyObject* kwnames,
                          listen::WatchedCall& watched) {
  const auto call = [&](bool cached, bool& must_repeat) -> PyObject* {
    CastArguments cast(args, positional + (kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames)));
    if (!cast.apply(op.form, arguments, decision, cached)) return nullptr;
    PyObject* result = call_original(
        op, arguments, cast.data(),
        static_cast<std::size_t>(positional) | PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
    must_repeat = result != nullptr && cast.lends(result);
    return result;
  };
  bool must_repeat = false;
  PyObject* result = call(/*cached=*/true, must_repeat);
  if (must_repeat) {  // a view, or dropout in eval: the caller may write to what it gets
    Py_DECREF(result);
    watched.forget_casts();
    result = call(/*cached=*/false, must_repeat);
  }
  return result;
}

bool any(const Arguments& arguments, bool (*is)(PyObject*)) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is(arguments.tensor(i).object)) return true;
  }
  return false;
}

// Whether the dispatcher asks nobody on its device: torch has no autocast for meta.
bool has_no_regions(PyObject* tensor) {
  return std::ranges::find(autocast::kDevices, THPVariable_Unpack(tensor).device().type()) ==
         autocast::kDevices.end();
}

// The weights of a call that torch gets as they are, to be looked up in 8 bits at the dispatcher.
class PassedWeights {
 public:
  explicit PassedWeights(const Arguments& arguments) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const at::Tensor& tensor = THPVariable_Unpack(arguments.tensor(i).object);
      if (!is_ordinary(tensor) || !WeightCache::accepts(tensor, DType::Int8)) continue;
      weight_cache().begin_pass(tensor);
      passed_.push_back(tensor.storage().unsafeGetStorageImpl());
    }
  }
  ~PassedWeights() {
    for (const c10::StorageImpl* weight : passed_) weight_cache().end_pass(weight);
  }
  PassedWeights(const PassedWeights&) = delete;
  PassedWeights& operator=(const PassedWeights&) = delete;

 private:
  c10::SmallVector<const c10::StorageImpl*, 2> passed_;
};

PyObject* call_patched(const PatchedOp& op, PyObject* const* args, std::size_t nargsf,
                       PyObject* kwnames) {
  const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
  Arguments arguments;
  arguments.find(op.form, args, positional, kwnames);
  if (op.rule.action == Action::Error) return refuse(op);
  // An object in place of a tensor (an fx proxy) gets the call as it was written: a cast beside it
  // would turn the parameters of a traced module into constants.
  if (!arguments.overriders().empty()) return call_original(op, arguments, args, nargsf, kwnames);

  Rule rule = op.rule;
  if (autocast::in_region_of_int8(*op.name) && only_torch_sees(arguments)) {
    // The region rounds the weight: that of the model, and no copy of it.
    const PassedWeights passed(arguments);
    return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  }
  if (is_int8(rule.action)) {
    if (any(arguments, is_traced) && called_by_decomposition())
      return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
    if (!autocast::in_region() && !any(arguments, has_no_regions)) {
      if (only_torch_sees(arguments)) {
        const PassedWeights passed(arguments);
        return call_original(op, arguments, args, nargsf, kwnames);
      }
      // In a trace, and where a mode of torch comes first: the op is called once more after it.
      if (torch_private::in_function_mode() || any(arguments, is_fake))
        return call_in_python(op, args, positional, kwnames);
    }
    rule.action = Action::Lower;
  }
  Decision decision =
      op.form.norm && arguments.size() > 0
          ? decide_norm(norm_call(op, arguments), [&] { return are_ordinary(arguments); })
          : decide(rule, arguments.described(), arguments.explicit_dtype());
  decision.instead_of = instead_of(op.rule.action, decision.cause);
  const auto [casting, traced] = to_cast(arguments, decision);
  if (traced && called_by_decomposition())
    return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  if (traced && is_of_traced_weight(op, arguments, decision))
    return call_in_python(op, args, positional, kwnames);
  const bool from_override = take_from_override(op);
  listen::WatchedCall watched;
  if (listen::anyone_listens() && (casting || !from_override)) {
    notify_begin(watched, {op, arguments, decision, casting, positional, kwnames});
  }
  PyObject* result = nullptr;
  if (casting && op.layout != Layout::Plain) {
    result = call_with_packed(op, arguments, decision, args, positional, kwnames);
    if (result == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  }
  if (result == nullptr) {
    result = casting ? call_with_casts(op, arguments, decision, args, positional, kwnames, watched)
                     : call_original(op, arguments, args, nargsf, kwnames);
  }
  if (result == nullptr) return without_low_kernel(op, args, nargsf, kwnames, watched);
  notify_end(watched, result);
  // Where nothing is cast here, the insides of a compound cast what is float32.
  if (casting || (op.form.compound && arguments.has(DType::Float32)))
    remember_low_result(op, result);
  return result;
}

// What is left of a call where nothing can be cast: most calls of a converted model, so it is kept
// short. Nobody listening, no override by a mode, no tensor subclass, and every eligible tensor in
// one dtype that the rule accepts as it is.
bool casts_nothing_here(const PatchedOp& op, PyObject* const* args, Py_ssize_t count) {
  if (listen::anyone_listens() || op.rule.action == Action::Error || op.form.compound ||
      torch_private::in_function_mode()) {
    return false;
  }
  DTypes seen;
  return seen.add(args, count) && casts_nothing(op.rule, seen.mask());
}

// A call with nothing to cast has raised. Apart from the others, whose code it would make slower.
[[gnu::noinline, gnu::cold]] PyObject* after_error(const PatchedOp& op, PyObject* const* args,
                                                   std::size_t nargsf, PyObject* kwnames) {
  try {
    listen::WatchedCall unwatched;
    return without_low_kernel(op, args, nargsf, kwnames, unwatched);
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

// A call while casts are off: nothing is cast, but what overrides the op gets torch's own function
// all the same.
PyObject* call_uncast(const PatchedOp& op, PyObject* const* args, std::size_t nargsf,
                      PyObject* kwnames) {
  const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
  Arguments arguments;
  arguments.find(op.form, args, positional, kwnames);
  return call_original(op, arguments, args, nargsf, kwnames);
}

}  // namespace

PyObject* vectorcall(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                     PyObject* kwnames) {
  const auto& op = *reinterpret_cast<PatchedOp*>(callable);
  if (!op.active) return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  const Py_ssize_t count =
      PyVectorcall_NARGS(nargsf) + (kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames));
  if (is_lower(op.rule.action)) last_lower = op.name;
  if (casts_nothing_here(op, args, count)) {  // casts on or off, so that is not asked
    {
      const CastsOffGuard guard(op.form.python && is_atomic(op) && !is_off(op) &&
                                !autocast::in_region_of_int8(*op.name));
      PyObject* result = PyObject_Vectorcall(op.original, args, nargsf, kwnames);
      if (result != nullptr) return result;
    }
    return is_off(op) ? nullptr : after_error(op, args, nargsf, kwnames);
  }
  const CastsOffGuard while_constructing(constructs_module());
  const bool off = is_off(op);
  if (off && !torch_private::in_function_mode() && DTypes().add(args, count)) {
    return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  }
  try {
    return off ? call_uncast(op, args, nargsf, kwnames) : call_patched(op, args, nargsf, kwnames);
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

}  // namespace habana_mp
