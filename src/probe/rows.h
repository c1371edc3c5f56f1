// Which row of a report the numbers of a call belong to, and which calls are looked at as a whole.
#pragma once

#include "evidence/rerun.h"
#include "watch/call_stack.h"

namespace habana_mp::probe {

// The frame that a call is counted with: of a row, or of a backward pass; null outside of any.
const watch::Frame* counted_with(const watch::Thread& thread);

// Whether the ops inside of the op have rules of their own, and so rows: they are looked at
// instead.
bool is_transparent(const watch::Frame& frame, const evidence::Op& op);
// The same of a call, for whose insides torch.autocast may cast: its arguments and results would
// not show that it ran low.
bool is_transparent(const watch::Frame& frame, const evidence::Op& op,
                    c10::ArrayRef<c10::IValue> inputs);

}  // namespace habana_mp::probe
