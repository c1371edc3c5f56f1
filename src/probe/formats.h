// A call in 8 bits (D56): it is run as one of the lists weight_int8 and int8 has it.
#pragma once

#include <optional>
#include <vector>

#include "evidence/rerun.h"
#include "probe/measured_call.h"
#include "report/site.h"
#include "report/values.h"

namespace habana_mp::probe {

// In the formats that are asked for, where the kernels can. `wanted`: the results of the call, each
// beside its numbers in float32. A weight that requires grad counts, too: what inference does is
// asked.
void measure_formats(const MeasuredCall& context, const std::vector<evidence::Compared>& wanted,
                     const report::Measure& measure, report::Values& values,
                     std::vector<Off>& waiting);

// The result as calls of the outcome, one in 8 bits, have it, out of sight; nothing where there are
// no kernels for it, and where the op raises. `given`: a tensor as the op was given it.
std::optional<torch::jit::Stack> rerun_in_8_bits(const evidence::Op& op,
                                                 c10::ArrayRef<c10::IValue> arguments,
                                                 const evidence::Change& given,
                                                 report::Outcome outcome, DType low);

}  // namespace habana_mp::probe
