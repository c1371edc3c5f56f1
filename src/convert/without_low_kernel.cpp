#include "convert/without_low_kernel.h"

#include <pybind11/pybind11.h>

#include <algorithm>

#include "base/torch_private.h"
#include "call/errors.h"
#include "cast/numbers.h"
#include "cast/tensors.h"
#include "convert/arguments.h"
#include "convert/cast_arguments.h"
#include "convert/notify.h"
#include "convert/overrides.h"
#include "listen/hears.h"
#include "scope/casts_off.h"

namespace habana_mp {
namespace {

// Whether nobody but torch has seen the call, at the dispatcher either, and would see it twice.
bool may_be_made_again(const Arguments& arguments) {
  if (!only_torch_sees(arguments)) return false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (may_be_traced(THPVariable_Unpack(arguments.tensor(i).object))) return false;
  }
  return true;
}

PyObject* call_again(const PatchedOp& op, const Arguments& arguments, const Decision& decision,
                     PyObject* const* args, Py_ssize_t positional, PyObject* kwnames) {
  listen::WatchedCall watched;
  if (listen::anyone_listens()) {
    const auto described = arguments.described();
    const bool casting = std::any_of(described.begin(), described.end(),
                                     [&](const Arg& arg) { return decision.casts(arg); });
    notify_begin(watched, {op, arguments, decision, casting, positional, kwnames});
  }
  CastArguments cast(args, positional + (kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames)));
  if (!cast.apply(op.form, arguments, decision, /*cached=*/false)) return nullptr;
  // What the op calls inside is to stay in float32.
  const CastsOffGuard guard(true);
  PyObject* result =
      call_original(op, arguments, cast.data(),
                    static_cast<std::size_t>(positional) | PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
  if (result == nullptr) watched.abandon();
  notify_end(watched, result);
  return result;
}

c10::SmallVector<at::Tensor, 8> low_tensors(const Arguments& arguments) {
  c10::SmallVector<at::Tensor, 8> found;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (may_be_low(arguments.described()[i].dtype))
      found.push_back(THPVariable_Unpack(arguments.tensor(i).object));
  }
  return found;
}

}  // namespace

NormCall norm_call(const PatchedOp& op, const Arguments& arguments) {
  const c10::DeviceType device = THPVariable_Unpack(arguments.tensor(0).object).device().type();
  return {*op.name, device, op.rule, arguments.described(), arguments.explicit_dtype()};
}

bool are_ordinary(const Arguments& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_ordinary(THPVariable_Unpack(arguments.tensor(i).object))) return false;
  }
  return true;
}

PyObject* without_low_kernel(const PatchedOp& op, PyObject* const* args, std::size_t nargsf,
                             PyObject* kwnames, listen::WatchedCall& watched) {
  // Of the others a compound alone is patched, for its insides.
  const bool decided =
      op.form.may_lack_low_kernel || op.rule.listed || op.rule.action != Action::Inputs;
  if (!decided || !PyErr_ExceptionMatches(PyExc_RuntimeError)) return nullptr;
  pybind11::error_already_set error;
  if (!blames_low_dtype(message_of(error.value()))) {
    error.restore();
    return nullptr;
  }
  const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
  Arguments arguments;
  arguments.find(op.form, args, positional, kwnames);
  const Decision decision =
      decide_without_low_kernel(op.rule, arguments.described(), arguments.explicit_dtype());
  if (decision.cause != Cause::None && may_be_made_again(arguments)) {
    watched.abandon();
    if (PyObject* result = call_again(op, arguments, decision, args, positional, kwnames)) {
      if (op.form.norm && are_ordinary(arguments)) remember_refusal(norm_call(op, arguments));
      return result;
    }
    PyErr_Clear();  // the first error is the one to see
  }
  error.restore();
  if (const auto low = low_tensors(arguments); !low.empty()) add_error_note(*op.name, low);
  return nullptr;
}

}  // namespace habana_mp
