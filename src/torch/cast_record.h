// Tells the cast log of a call of a patched op. Called only while the log is on.
#pragma once

#include "torch/arguments.h"
#include "torch/patched_op.h"

namespace habana_mp {

// Throws what the log's writer throws (a closed pipe, an interrupt).
void log_call(const PatchedOp& op, const Arguments& arguments, const Decision& decision,
              bool casting, Py_ssize_t positional, PyObject* kwnames);

}  // namespace habana_mp
