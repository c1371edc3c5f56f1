#include "watch/decider_id.h"

#include <string>

#include "base/name_numbers.h"

namespace habana_mp::watch {

std::uint32_t decider_id(const Policy& policy, report::FrontEnd front_end) {
  return number_of("policy " + std::to_string(static_cast<int>(front_end)) + " " + policy.name() +
                   " " + std::to_string(policy.hash()));
}

std::uint32_t decider_id(std::uint32_t conversion, std::string_view rule) {
  return number_of("rule " + std::to_string(conversion) + " " + std::string(rule));
}

}  // namespace habana_mp::watch
