// Numbers of what decides calls, by its content: a region that is made anew at each step has one.
// They are hashes, so nothing is kept of policies that come and go.
#pragma once

#include <cstdint>
#include <string_view>

#include "policy/policy.h"
#include "report/site.h"

namespace habana_mp::watch {

std::uint64_t decider_id(const Policy& policy, report::FrontEnd front_end);
// Of a rule of the conversion with this number.
std::uint64_t decider_id(std::uint64_t conversion, std::string_view rule);

}  // namespace habana_mp::watch
