// decide(): which arguments of a call go to which dtype. Everything that says so is here, and both
// front ends call it. A pure function on plain values: it must not know Python, torch, op names or
// lists. It runs at every patched call, so it is inline and allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "policy/dtype.h"
#include "policy/roles.h"

namespace habana_mp {

// What a list, or the rest of a policy, says of an op. Of the first four an op has one.
enum class Action : std::uint8_t {
  Lower,
  WeightInt8,  // as Lower, with weights in 8 bits; Int8: activations beside them, too (D56)
  Int8,
  Fp32,
  Promote,
  FirstInput,
  Inputs,
  Error
};
// _core.ACTIONS has these.
inline constexpr std::array<const char*, 8> kActionNames = {
    "lower", "weight_int8", "int8", "fp32", "promote", "first_input", "inputs", "error"};
constexpr const char* action_name(Action action) {
  return kActionNames[static_cast<std::size_t>(action)];
}

constexpr bool is_int8(Action action) {
  return action == Action::WeightInt8 || action == Action::Int8;
}
// Whether what an op computes with is cast to the low dtype.
constexpr bool is_lower(Action action) { return action == Action::Lower || is_int8(action); }

// listed: a list decided; else the policy's rest did (FirstInput, Fp32 or Inputs).
struct Rule {
  Action action;
  DType low;
  bool listed;

  friend constexpr bool operator==(const Rule&, const Rule&) = default;
};

struct Arg {
  DType dtype;
  bool zero_dim;
  Role role;
};

// Why a call has its dtype. None: the call is left alone.
enum class Cause : std::uint8_t {
  None,
  Lower,
  Fp32,
  Promote,
  InPlace,
  FirstInput,
  RestFp32,
  NoLowKernel,
  WeightInt8,
  Int8
};
// _core.CAUSES has these.
inline constexpr std::array kCauseNames = {
    "none",        "lower",     "fp32",          "promote",     "in_place",
    "first_input", "rest_fp32", "no_low_kernel", "weight_int8", "int8"};

constexpr const char* cause_name(Cause cause) {
  return kCauseNames[static_cast<std::size_t>(cause)];
}

struct Decision {
  DType to;
  Cause cause;
  std::uint8_t roles;  // role_bit()s of the arguments that the decision is about
  // What the rule says and the weight of the call does not allow: the list in 8 bits (D56).
  Cause instead_of = Cause::None;

  constexpr bool casts(const Arg& arg) const {
    return (roles & role_bit(arg.role)) != 0 && may_be_cast(arg.dtype) && arg.dtype != to;
  }

  friend constexpr bool operator==(const Decision&, const Decision&) = default;
};

inline constexpr Decision kLeftAlone{DType::Other, Cause::None, 0};

constexpr bool is_int8(Cause cause) { return cause == Cause::WeightInt8 || cause == Cause::Int8; }

constexpr Cause cause_of_lower(Action action) {
  return action == Action::WeightInt8 ? Cause::WeightInt8
         : action == Action::Int8     ? Cause::Int8
                                      : Cause::Lower;
}

// What a decision took the place of, where an op in `listed` was decided as one of lower.
constexpr Cause instead_of(Action listed, Cause decided) {
  return is_int8(listed) && decided == Cause::Lower ? cause_of_lower(listed) : Cause::None;
}

namespace decide_detail {

// A set of dtypes for each role, in one word. Filled without a branch.
template <std::size_t kRoles, std::size_t kDTypesOfRole>
class DTypeSets {
  // A power of two, so that the place of a role is a shift.
  static constexpr std::size_t kWidth = std::bit_ceil(kDTypesOfRole);
  static_assert(kRoles * kWidth <= 64, "roles and dtypes do not fit into the word");
  static constexpr std::uint64_t kFirstOfEach = [] {
    std::uint64_t bits = 0;
    for (std::size_t role = 0; role < kRoles; ++role) bits |= std::uint64_t{1} << (kWidth * role);
    return bits;
  }();

 public:
  constexpr void add(Role role, DType dtype) {
    bits_ |= std::uint64_t{dtype_bit(dtype)} << at(role);
  }
  constexpr std::uint32_t of(Role role) const {
    return static_cast<std::uint32_t>(bits_ >> at(role) & ((std::uint64_t{1} << kWidth) - 1));
  }
  constexpr bool any(DType dtype) const { return (bits_ & kFirstOfEach * dtype_bit(dtype)) != 0; }

 private:
  static constexpr std::size_t at(Role role) { return kWidth * static_cast<std::size_t>(role); }

  std::uint64_t bits_ = 0;
};

using DTypesByRole = DTypeSets<kRoleCount, kDTypeCount>;

// The widest of a set of eligible dtypes; float16 with bfloat16 makes float32 (D13).
constexpr DType widest(std::uint32_t seen) {
  return std::has_single_bit(seen) ? static_cast<DType>(std::countr_zero(seen)) : DType::Float32;
}

constexpr bool has_one_floating_tensor(std::span<const Arg> args) {
  return std::ranges::count_if(args, [](const Arg& arg) { return may_be_cast(arg.dtype); }) == 1;
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
    seen.add(arg.role, arg.dtype);
    if (!arg.zero_dim) dimensioned.add(arg.role, arg.dtype);
  }
  if (seen.any(DType::Float64)) return kLeftAlone;  // D10

  if (seen.of(Role::Target) != 0) {  // D11: in place wins over the lists; D12
    const bool untouched =
        rule.action == Action::Error || (rule.action == Action::Inputs && !rule.listed);
    const DType target = first_dtype(args, Role::Target);
    if (untouched || !eligible(target)) return kLeftAlone;
    return {target, Cause::InPlace, kAll};
  }

  // D49: a view or a copy of stored numbers, which a kernel for float8 may want.
  if (seen.any(DType::Float8) && has_one_floating_tensor(args)) return kLeftAlone;

  const std::uint32_t inputs = seen.of(Role::Input) & kSourceDTypes;
  const std::uint32_t affine = seen.of(Role::Affine) & kSourceDTypes;
  const std::uint32_t all = inputs | affine;
  const std::uint32_t statistics = seen.of(Role::Statistic) & kEligibleDTypes;
  switch (rule.action) {
    case Action::Lower:
    case Action::WeightInt8:
    case Action::Int8:  // D14: of a norm the input alone, but norms take no float8
      if (inputs == 0) return kLeftAlone;
      return {rule.low, cause_of_lower(rule.action),
              (affine & dtype_bit(DType::Float8)) != 0 ? kAll : kInputs};
    case Action::Fp32:
      // D14: statistics stay as they are, and beside a float32 input torch takes no lower ones.
      if (all == 0 || (statistics & ~dtype_bit(DType::Float32)) != 0) return kLeftAlone;
      // D49: without a rule of its own an op on stored numbers alone moves them: where, stack.
      if (!rule.listed && (all & kEligibleDTypes) == 0) return kLeftAlone;
      return {DType::Float32, rule.listed ? Cause::Fp32 : Cause::RestFp32, kAll};
    case Action::Promote: {
      const std::uint32_t wanted = all & kEligibleDTypes;
      if (wanted == 0) return kLeftAlone;
      const std::uint32_t count =
          (dimensioned.of(Role::Input) | dimensioned.of(Role::Affine)) & kEligibleDTypes;
      return {widest(count != 0 ? count : wanted), Cause::Promote, kAll};
    }
    case Action::FirstInput:
      if ((inputs & kEligibleDTypes) == 0) return kLeftAlone;
      return {first_dtype(args, Role::Input), Cause::FirstInput, kInputs};
    case Action::Inputs:
    case Action::Error:  // the front end raises
      break;
  }
  return kLeftAlone;
}

// What becomes of a call that has failed because the device has no kernel of the op for a low
// dtype, which its arguments have or the rule gave them: float32, where the call writes to none of
// them and none is float64 (D42).
constexpr Decision decide_without_low_kernel(Rule rule, std::span<const Arg> args,
                                             bool explicit_dtype) {
  std::uint32_t seen = 0;
  for (const Arg& arg : args) {
    if (arg.role == Role::Target) return kLeftAlone;
    if (arg.role != Role::Statistic) seen |= dtype_bit(arg.dtype);
  }
  const bool low = (seen & kLowBits) != 0 || (is_lower(rule.action) && (seen & kSourceDTypes) != 0);
  if (explicit_dtype || !low || (seen & dtype_bit(DType::Float64)) != 0) return kLeftAlone;
  // Without a rule the float8 tensor is to blame, and torch's error is the answer (D49).
  if (rule.action == Action::Inputs && (seen & dtype_bit(DType::Float8)) != 0) return kLeftAlone;
  return {DType::Float32, Cause::NoLowKernel,
          static_cast<std::uint8_t>(role_bit(Role::Input) | role_bit(Role::Affine))};
}

// Whether decide() would cast nothing, told from the dtypes of the arguments alone (dtype_bit()s):
// none that may be cast, or all of one dtype that the rule does not change. False: ask decide(),
// and of a rule for 8 bits what the op computes with, which may be low already.
constexpr bool casts_nothing(Rule rule, unsigned seen) {
  const unsigned sources = seen & kSourceDTypes;
  if (sources == 0) return true;
  switch (rule.action) {
    case Action::Lower:
      return sources == dtype_bit(rule.low);
    case Action::WeightInt8:
    case Action::Int8:
      return false;
    case Action::Fp32:
      return sources == dtype_bit(DType::Float32);
    default:
      return (sources & (sources - 1)) == 0;
  }
}

}  // namespace habana_mp
