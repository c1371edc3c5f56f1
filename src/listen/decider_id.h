// Numbers of what decides calls, by its content: a region that is made anew at each step has one.
// They are hashes, so nothing is kept of policies that come and go.
#pragma once

#include <cstdint>
#include <string_view>

#include "listen/event.h"
#include "policy/policy.h"

namespace habana_mp::listen {

std::uint64_t decider_id(const Policy& policy, FrontEnd front_end);
// Of a rule of the conversion with this number.
std::uint64_t decider_id(std::uint64_t conversion, std::string_view rule);

}  // namespace habana_mp::listen
