// Numbers of what decides calls, by its content: a region that is made anew at each step has one.
#pragma once

#include <cstdint>
#include <string_view>

#include "policy/policy.h"
#include "report/site.h"

namespace habana_mp::watch {

std::uint32_t decider_id(const Policy& policy, report::FrontEnd front_end);
// Of a rule of the conversion with this number.
std::uint32_t decider_id(std::uint32_t conversion, std::string_view rule);

}  // namespace habana_mp::watch
