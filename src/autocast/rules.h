// A policy made into the rules of a region: one for every op of the catalogue.
#pragma once

#include <memory>

#include "policy/policy.h"
#include "scope/rules.h"

namespace habana_mp::autocast {

std::shared_ptr<const Rules> compile(std::shared_ptr<const Policy> policy);

}  // namespace habana_mp::autocast
