// decide(): which arguments of a call go to which dtype. Everything that says so is here, and both
// front ends call it. A pure function on plain values: it must not know Python, torch, op names or
// lists. It runs at every patched call, so it is inline and allocates nothing.
#pragma once

#include <cstdint>
#include <span>

#include "policy/dtype.h"

namespace habana_mp {

// What a list, or the rest of a policy, says of an op. _core.ACTIONS names these in this order.
enum class Action : std::uint8_t { Lower, Fp32, Promote, FirstInput, Inputs, Error };

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

constexpr unsigned dtype_bit(DType dtype) { return 1u << static_cast<unsigned>(dtype); }

namespace decide_detail {

inline constexpr unsigned kEligible =
    dtype_bit(DType::Float16) | dtype_bit(DType::BFloat16) | dtype_bit(DType::Float32);

// The widest of a set of eligible dtypes; float16 with bfloat16 makes float32 (D13).
constexpr DType widest(unsigned seen) {
  if (seen == dtype_bit(DType::BFloat16)) return DType::BFloat16;
  if (seen == dtype_bit(DType::Float16)) return DType::Float16;
  return DType::Float32;
}

}  // namespace decide_detail

// explicit_dtype: the call names its result's dtype or gives out= (D11).
constexpr Decision decide(Rule rule, std::span<const Arg> args, bool explicit_dtype) {
  using decide_detail::kEligible;
  constexpr std::uint8_t kInputs = role_bit(Role::Input);
  constexpr std::uint8_t kAll = kInputs | role_bit(Role::Affine);

  if (explicit_dtype) return kLeftAlone;

  unsigned inputs = 0;       // dtypes among Role::Input
  unsigned all = 0;          // dtypes among Role::Input and Role::Affine
  unsigned dimensioned = 0;  // those of them that are no 0-dim tensors
  DType first = DType::Other;
  DType target = DType::Other;
  bool in_place = false;
  bool has_float64 = false;
  for (const Arg& arg : args) {
    has_float64 |= arg.dtype == DType::Float64;
    const unsigned bit = dtype_bit(arg.dtype) & kEligible;
    switch (arg.role) {
      case Role::Input:
        inputs |= bit;
        if (first == DType::Other && bit != 0) first = arg.dtype;
        [[fallthrough]];
      case Role::Affine:
        all |= bit;
        if (!arg.zero_dim) dimensioned |= bit;
        break;
      case Role::Statistic:
        break;
      case Role::Target:
        if (!in_place) target = arg.dtype;
        in_place = true;
        break;
    }
  }
  if (has_float64) return kLeftAlone;  // D10

  if (in_place) {  // D11: wins over the lists; D12
    const bool untouched =
        rule.action == Action::Error || (rule.action == Action::Inputs && !rule.listed);
    if (untouched || !eligible(target)) return kLeftAlone;
    return {target, Cause::InPlace, kAll};
  }

  switch (rule.action) {
    case Action::Lower:  // D14: of a norm only the input; an op without affine arguments has inputs
                         // alone
      return inputs == 0 ? kLeftAlone : Decision{rule.low, Cause::Lower, kInputs};
    case Action::Fp32:
      if (all == 0) return kLeftAlone;
      return {DType::Float32, rule.listed ? Cause::Fp32 : Cause::RestFp32, kAll};
    case Action::Promote:
      if (all == 0) return kLeftAlone;
      return {decide_detail::widest(dimensioned != 0 ? dimensioned : all), Cause::Promote, kAll};
    case Action::FirstInput:
      return first == DType::Other ? kLeftAlone : Decision{first, Cause::FirstInput, kInputs};
    case Action::Inputs:
    case Action::Error:  // the front end raises
      break;
  }
  return kLeftAlone;
}

// Whether decide() would cast nothing, told from the dtypes of the arguments alone (dtype_bit()s):
// no eligible tensor, or all of one dtype that the rule does not change. False means: ask decide().
constexpr bool settled(Rule rule, unsigned seen) {
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
