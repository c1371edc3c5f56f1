// What becomes of a call of a patched op whose original has failed (D42).
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstddef>

#include "call/errors.h"
#include "convert/arguments.h"
#include "convert/patched_op.h"
#include "listen/watched_call.h"

namespace habana_mp {

// The original has raised. Where the device has no kernel for the low dtype of the arguments, calls
// it in float32 and returns that result; `watched`, the call that failed, does not count. Else the
// error stays set, with a note where it blames a low dtype, and the result is null.
PyObject* without_low_kernel(const PatchedOp& op, PyObject* const* args, std::size_t nargsf,
                             PyObject* kwnames, listen::WatchedCall& watched);

// A call of a norm, which has a tensor.
NormCall norm_call(const PatchedOp& op, const Arguments& arguments);
bool are_ordinary(const Arguments& arguments);

}  // namespace habana_mp
