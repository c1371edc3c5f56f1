// Errors that a call inherits: its arguments are off by what calls before it did to numbers that no
// gradient comes to. Where they meet numbers that require gradients, what they are off by counts
// for the op that has made most of it.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "evidence/choices.h"
#include "probe/measured_call.h"

namespace habana_mp::probe {

bool has_any_shadow(c10::ArrayRef<c10::IValue> arguments);  // of either kind
// Whether its arguments, or what they are casts of, have one of float32.
bool is_shadowed(const MeasuredCall& context);

bool is_copy(const evidence::Op& op);  // the same numbers, in another dtype at most

// Of a call that has ended. `given`: its results beside those of float32 on the inputs that it had.
// Both give what the op chooses, and how much of it float32 would choose otherwise.
evidence::Flips follow_shadows(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                               const std::vector<evidence::Compared>& given,
                               std::vector<Off>& waiting);

// The same for what would be off if it were in the low dtype. `lowered`: results in float32 beside
// those of the low dtype; empty for a call that ran low.
void follow_low_shadows(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                        const std::vector<evidence::Compared>& lowered, std::vector<Off>& waiting);

// Of what functions of autograd have returned, where a call is given it first: it is off by what
// was made inside of them, where no gradient comes to.
void leave_functions(c10::ArrayRef<c10::IValue> arguments, std::vector<Off>& waiting);

// Of an op that moves numbers about, or chooses by them: the shadow of what it was given goes with
// them.
evidence::Flips move_shadow(const MeasuredCall& context, const std::vector<c10::IValue>& results);

}  // namespace habana_mp::probe
