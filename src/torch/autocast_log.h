// Tells the cast log of a call that autocast decides. Called only while the log is on.
#pragma once

#include "policy/policy.h"
#include "torch/autocast_op.h"

namespace habana_mp::autocast {

// Takes the GIL. Throws what the log's writer throws.
void log_call(const Op& op, const Policy& policy, const Call& call, const Decision& decision,
              bool casting);

}  // namespace habana_mp::autocast
