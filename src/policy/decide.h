// decide(): which arguments of a call go to which dtype. Everything that says so is here, and both
// front ends call it. A pure function on plain values: it must not know Python, torch, op names or
// lists. It runs at every patched call, so it is inline and allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "policy/dtype.h"

namespace habana_mp {

// What a list, or the rest of a policy, says of an op.
enum class Action : std::uint8_t { Lower, Fp32, Promote, FirstInput, Inputs, Error };
// _core.ACTIONS has these.
inline constexpr std::array<const char*, 6> kActionNames = {"lower",       "fp32",   "promote",
                                                            "first_input", "inputs", "error"};
constexpr const char* action_name(Action action) {
  return kActionNames[static_cast<std::size_t>(action)];
}

// listed: a list decided; else the policy's rest did (FirstInput, Fp32 or Inputs).
struct Rule {
  Action action;
  DType low;
  bool listed;

  friend constexpr bool operator==(const Rule&, const Rule&) = default;
};

// What an argument is to its op (D11, D12, D14). _core.ROLES names these in this order.
// Affine: weight and bias of a norm. Statistic: running mean and variance, never cast.
// Target: what an in-place call writes to, never cast.
enum class Role : std::uint8_t { Input, Affine, Statistic, Target };

struct Arg {
  DType dtype;
  bool zero_dim;
  Role role;
};

// Why a call has its dtype. None: the call is left alone. _core.CAUSES names these in this order.
enum class Cause : std::uint8_t { None, Lower, Fp32, Promote, InPlace, FirstInput, RestFp32 };

constexpr std::uint8_t role_bit(Role role) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(role));
}

struct Decision {
  DType to;
  Cause cause;
  std::uint8_t roles;  // role_bit()s of the arguments that the decision is about

  constexpr bool casts(const Arg& arg) const {
    return (roles & role_bit(arg.role)) != 0 && eligible(arg.dtype) && arg.dtype != to;
  }

  friend constexpr bool operator==(const Decision&, const Decision&) = default;
};

inline constexpr Decision kLeftAlone{DType::Other, Cause::None, 0};

constexpr std::uint32_t dtype_bit(DType dtype) { return 1u << static_cast<unsigned>(dtype); }

namespace decide_detail {

inline constexpr std::uint32_t kEligible =
    dtype_bit(DType::Float16) | dtype_bit(DType::BFloat16) | dtype_bit(DType::Float32);

// A set of dtypes for each role: a byte a role, a bit a dtype. Filled without a branch.
struct DTypesByRole {
  std::uint32_t bits = 0;

  constexpr void add(const Arg& arg) {
    bits |= dtype_bit(arg.dtype) << (8 * static_cast<unsigned>(arg.role));
  }
  constexpr std::uint32_t of(Role role) const {
    return (bits >> (8 * static_cast<unsigned>(role))) & 0xFFu;
  }
  constexpr bool any(DType dtype) const { return (bits & (dtype_bit(dtype) * 0x01010101u)) != 0; }
};

// The widest of a set of eligible dtypes; float16 with bfloat16 makes float32 (D13).
constexpr DType widest(std::uint32_t seen) {
  if (seen == dtype_bit(DType::BFloat16)) return DType::BFloat16;
  if (seen == dtype_bit(DType::Float16)) return DType::Float16;
  return DType::Float32;
}

// The dtype of the first target, or of the first eligible input: there is one.
constexpr DType first_dtype(std::span<const Arg> args, Role role) {
  for (const Arg& arg : args) {
    if (arg.role == role && (role == Role::Target || eligible(arg.dtype))) return arg.dtype;
  }
  return DType::Other;
}

}  // namespace decide_detail

// explicit_dtype: the call names its result's dtype or gives out= (D11).
constexpr Decision decide(Rule rule, std::span<const Arg> args, bool explicit_dtype) {
  using namespace decide_detail;
  constexpr std::uint8_t kInputs = role_bit(Role::Input);
  constexpr std::uint8_t kAll = kInputs | role_bit(Role::Affine);

  if (explicit_dtype) return kLeftAlone;

  DTypesByRole seen;
  DTypesByRole dimensioned;
  for (const Arg& arg : args) {
    seen.add(arg);
    if (!arg.zero_dim) dimensioned.add(arg);
  }
  if (seen.any(DType::Float64)) return kLeftAlone;  // D10

  if (seen.of(Role::Target) != 0) {  // D11: in place wins over the lists; D12
    const bool untouched =
        rule.action == Action::Error || (rule.action == Action::Inputs && !rule.listed);
    const DType target = first_dtype(args, Role::Target);
    if (untouched || !eligible(target)) return kLeftAlone;
    return {target, Cause::InPlace, kAll};
  }

  const std::uint32_t inputs = seen.of(Role::Input) & kEligible;
  const std::uint32_t all = inputs | (seen.of(Role::Affine) & kEligible);
  const std::uint32_t statistics = seen.of(Role::Statistic) & kEligible;
  switch (rule.action) {
    case Action::Lower:  // D14: of a norm the input alone
      return inputs == 0 ? kLeftAlone : Decision{rule.low, Cause::Lower, kInputs};
    case Action::Fp32:
      // D14: statistics stay as they are, and beside a float32 input torch takes no lower ones.
      if (all == 0 || (statistics & ~dtype_bit(DType::Float32)) != 0) return kLeftAlone;
      return {DType::Float32, rule.listed ? Cause::Fp32 : Cause::RestFp32, kAll};
    case Action::Promote: {
      if (all == 0) return kLeftAlone;
      const std::uint32_t count =
          (dimensioned.of(Role::Input) | dimensioned.of(Role::Affine)) & kEligible;
      return {widest(count != 0 ? count : all), Cause::Promote, kAll};
    }
    case Action::FirstInput:
      if (inputs == 0) return kLeftAlone;
      return {first_dtype(args, Role::Input), Cause::FirstInput, kInputs};
    case Action::Inputs:
    case Action::Error:  // the front end raises
      break;
  }
  return kLeftAlone;
}

// Whether decide() would cast nothing, told from the dtypes of the arguments alone (dtype_bit()s):
// no eligible tensor, or all of one dtype that the rule does not change. False means: ask decide().
constexpr bool casts_nothing(Rule rule, unsigned seen) {
  const unsigned eligible_seen = seen & decide_detail::kEligible;
  if (eligible_seen == 0) return true;
  switch (rule.action) {
    case Action::Lower:
      return eligible_seen == dtype_bit(rule.low);
    case Action::Fp32:
      return eligible_seen == dtype_bit(DType::Float32);
    default:
      return (eligible_seen & (eligible_seen - 1)) == 0;
  }
}

}  // namespace habana_mp
