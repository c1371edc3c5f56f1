// The call of the original of a patched op, or of what overrides it by __torch_function__: a mode,
// a tensor subclass, a stand-in.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstddef>

#include "convert/arguments.h"
#include "convert/patched_op.h"

namespace habana_mp {

// `arguments` describes `args`, which may hold casts already. A new reference, or null with a
// Python error set.
PyObject* call_original(const PatchedOp& op, const Arguments& arguments, PyObject* const* args,
                        std::size_t nargsf, PyObject* kwnames);

// Whether no __torch_function__ but that of torch.Tensor, which subclasses inherit, sees the call.
bool only_torch_sees(const Arguments& arguments);

// Whether this call comes from the __torch_function__ that call_original has just passed the op to:
// the listeners have been called already. True once for each.
bool take_from_override(const PatchedOp& op);

}  // namespace habana_mp
