// Calls without a counterpart whose results are parts of those of one call of the other run, or the
// same by another op: separate projections and a fused one, tokens one at a time and a whole
// sequence, one kernel of attention and several ops.
#pragma once

#include "probe/pairing.h"

namespace habana_mp::probe {

// Gives them partners, and looks once more at those that were taken to pass on what they were
// given.
void pair_parts(Pairing& pairing, const Recording& second);

}  // namespace habana_mp::probe
