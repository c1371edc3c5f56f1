// What an argument is to its op, said once for both front ends and for traced code: they find the
// facts, each in calls as it sees them. It must not know Python, torch or policies.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace habana_mp {

// Affine: weight and bias of a norm. Statistic: running mean and variance, never cast.
// Target: what an in-place call writes to, never cast. (D11, D12, D14)
enum class Role : std::uint8_t { Input, Affine, Statistic, Target };
// A name for each, in this order: _core.ROLES.
inline constexpr std::array kRoleNames = {"input", "affine", "statistic", "target"};
inline constexpr std::size_t kRoleCount = kRoleNames.size();

// A set of roles has a bit for each.
static_assert(kRoleCount <= 8);
constexpr std::uint8_t role_bit(Role role) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(role));
}

struct ArgumentFacts {
  bool norm;       // of an op that is a norm
  bool first;      // the first input
  bool written;    // the call writes to it
  bool statistic;  // where a norm has its running statistics, or of their name
};

constexpr Role role_of(const ArgumentFacts& facts) {
  if (facts.written) return Role::Target;
  if (!facts.norm || facts.first) return Role::Input;
  return facts.statistic ? Role::Statistic : Role::Affine;
}

// How the first input is called where it is given by keyword, and the running statistics of every
// norm.
inline constexpr std::array<std::string_view, 2> kFirstInputNames = {"input", "self"};
inline constexpr std::array<std::string_view, 2> kStatisticNames = {"running_mean", "running_var"};

constexpr bool names_statistic(std::string_view argument) {
  return std::ranges::find(kStatisticNames, argument) != kStatisticNames.end();
}

}  // namespace habana_mp
