#include "listen/event.h"

#include <functional>

namespace habana_mp::listen {
namespace {

// 0 stands for nobody.
std::uint64_t id_of(const std::string& content) { return std::hash<std::string>{}(content) | 1u; }

}  // namespace

std::uint64_t decider_id(const Policy& policy, FrontEnd front_end) {
  return id_of(std::to_string(static_cast<int>(front_end)) + " " + policy.name() + " " +
               std::to_string(policy.hash()));
}

std::uint64_t decider_id(std::uint64_t conversion, std::string_view rule) {
  return id_of(std::to_string(conversion) + " rule " + std::string(rule));
}

}  // namespace habana_mp::listen
