// A policy made into the rules of a region: one for every op of the catalogue.
#pragma once

#include <memory>

#include "policy/policy.h"
#include "scope/rules.h"

namespace habana_mp::autocast {

// `of_conversion`: for the insides of compounds that convert has patched.
std::shared_ptr<const Rules> compile(std::shared_ptr<const Policy> policy, bool of_conversion);

}  // namespace habana_mp::autocast
