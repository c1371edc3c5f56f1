// Which ops may be run again to measure them, and why others may not (D50): a table of names over
// what the schema of an op says. Running again must be safe for every op of torch that the table
// does not name; tests/evidence/rerun/test_repeatable.py looks at all of them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "report/values.h"

namespace habana_mp::evidence {

// Of every call of the op; None where a call may be made again.
report::Unmeasured why_not_again(const c10::OperatorHandle& op);

// Whether the op runs Python for a tensor with these keys: what that does nobody knows.
bool runs_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys);

// With each instrument that begins, so that kernels which were registered meanwhile are seen.
void forget_kernels();

}  // namespace habana_mp::evidence
