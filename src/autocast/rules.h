// A policy made into the rules of a region, one for every op of the catalogue; and the kernels that
// apply them: what the dispatcher calls before an op inside a region. Each casts the arguments as
// decide() says and calls the op below autocast. What is in force where is scope/regions.h.
#pragma once

#include <memory>

#include "policy/policy.h"
#include "scope/state.h"

namespace habana_mp::autocast {

// `of_conversion`: for the insides of compounds that convert has patched.
std::shared_ptr<const Rules> compile(std::shared_ptr<const Policy> policy, bool of_conversion);

// Registers the kernels of all ops that the policy names, and of those that torch itself casts, if
// they are not registered yet.
void register_kernels(const Rules& rules);

}  // namespace habana_mp::autocast
