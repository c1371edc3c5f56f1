// The last results of this thread in lower precision, with the ops that casts made them of: a
// parameter that is made of one would stay in lower precision (D45), which
// habana_mp/_convert/births.py warns of.
#pragma once

#include <torch/csrc/python_headers.h>

#include "convert/patched_op.h"

namespace habana_mp {

// `result`: of a call that has cast something; null is one that raised.
void remember_low_result(const PatchedOp& op, PyObject* result);

// The op that made the memory of a tensor; null where it was none of the last ones.
const PatchedOp* maker_of(PyObject* tensor);

}  // namespace habana_mp
