// decide(): the cases of D10 to D15 and D49 as a table, and properties that hold for every call
// with up to three tensors.
#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "policy/decide.h"

using namespace habana_mp;

namespace {

constexpr DType F8 = DType::Float8, F16 = DType::Float16, BF16 = DType::BFloat16,
                F32 = DType::Float32, F64 = DType::Float64, INT = DType::Other;

constexpr Rule kLower{Action::Lower, BF16, true}, kLower16{Action::Lower, F16, true},
    kFp32{Action::Fp32, BF16, true}, kPromote{Action::Promote, BF16, true},
    kFirst{Action::FirstInput, BF16, false}, kRestFp32{Action::Fp32, BF16, false},
    kInputs{Action::Inputs, BF16, false}, kError{Action::Error, BF16, true},
    kInt8{Action::Int8, BF16, true}, kWeightInt8{Action::WeightInt8, F16, true};

constexpr Arg in(DType dtype) { return {dtype, false, Role::Input}; }
constexpr Arg scalar(DType dtype) { return {dtype, true, Role::Input}; }
constexpr Arg affine(DType dtype) { return {dtype, false, Role::Affine}; }
constexpr Arg statistic(DType dtype) { return {dtype, false, Role::Statistic}; }
constexpr Arg target(DType dtype) { return {dtype, false, Role::Target}; }

struct Case {
  const char* id;
  Rule rule;
  std::vector<Arg> args;
  bool explicit_dtype;
  Cause cause;
  DType to;
  const char* casts;  // one letter an argument: x is cast, - is not
};

const std::vector<Case> kCases = {
    {"D11 lower: all inputs", kLower, {in(F32), in(F32)}, false, Cause::Lower, BF16, "xx"},
    {"F55 lower: what is low already stays",
     kLower,
     {in(BF16), in(F32)},
     false,
     Cause::Lower,
     BF16,
     "-x"},
    {"D25 lower: decided though nothing is cast",
     kLower,
     {in(BF16), in(BF16)},
     false,
     Cause::Lower,
     BF16,
     "--"},
    {"D56 int8: as lower", kInt8, {in(F32), in(F32)}, false, Cause::Int8, BF16, "xx"},
    {"D56 weight_int8: what is low already stays",
     kWeightInt8,
     {in(F16), in(BF16)},
     false,
     Cause::WeightInt8,
     F16,
     "-x"},
    {"D56 int8: float64 leaves the call alone",
     kInt8,
     {in(F64), in(F32)},
     false,
     Cause::None,
     INT,
     "--"},
    {"D9 lower of float16", kLower16, {in(F32), in(BF16)}, false, Cause::Lower, F16, "xx"},
    {"D10 lower: integers stay", kLower, {in(INT), in(F32)}, false, Cause::Lower, BF16, "-x"},
    {"D10 no eligible tensor", kLower, {in(INT), in(INT)}, false, Cause::None, INT, "--"},
    {"D10 no tensor at all", kLower, {}, false, Cause::None, INT, ""},
    {"D10 float64 leaves the call alone",
     kLower,
     {in(F32), in(F64)},
     false,
     Cause::None,
     INT,
     "--"},
    {"D10 float64 statistic too", kLower, {in(F32), statistic(F64)}, false, Cause::None, INT, "--"},
    {"D10 float64 target too", kFirst, {target(F64), in(BF16)}, false, Cause::None, INT, "--"},
    {"D49 lower: a float8 weight", kLower, {in(F32), in(F8)}, false, Cause::Lower, BF16, "xx"},
    {"D49 lower: two float8 tensors", kLower, {in(F8), in(F8)}, false, Cause::Lower, BF16, "xx"},
    {"D49 lower: float8 alone", kLower, {in(F8), in(INT)}, false, Cause::None, INT, "--"},
    {"D49 lower: a norm's float8 weight",
     kLower,
     {in(F32), affine(F8), affine(F32)},
     false,
     Cause::Lower,
     BF16,
     "xxx"},
    {"D49 fp32: float8 beside float32", kFp32, {in(F32), in(F8)}, false, Cause::Fp32, F32, "-x"},
    {"D49 fp32: float8 alone", kFp32, {in(F8)}, false, Cause::None, INT, "-"},
    {"D49 fp32 as the rest: float8 with itself",
     kRestFp32,
     {in(F8), in(F8)},
     false,
     Cause::None,
     INT,
     "--"},
    {"D49 promote: float8 does not count",
     kPromote,
     {in(F8), in(BF16)},
     false,
     Cause::Promote,
     BF16,
     "x-"},
    {"D49 promote: float8 beside a scalar",
     kPromote,
     {in(F8), scalar(F32)},
     false,
     Cause::Promote,
     F32,
     "x-"},
    {"D49 promote: float8 with itself", kPromote, {in(F8), in(F8)}, false, Cause::None, INT, "--"},
    {"D49 first input: the first that is not float8",
     kFirst,
     {in(F8), in(BF16), in(F32)},
     false,
     Cause::FirstInput,
     BF16,
     "x-x"},
    {"D49 first input: float8 with itself",
     kFirst,
     {in(F8), in(F8)},
     false,
     Cause::None,
     INT,
     "--"},
    {"D49 in place: into float8", kLower, {target(F8), in(F32)}, false, Cause::None, INT, "--"},
    {"D49 in place: from float8", kLower, {target(F32), in(F8)}, false, Cause::InPlace, F32, "-x"},
    {"D49 float64 beside float8", kLower, {in(F8), in(F64)}, false, Cause::None, INT, "--"},
    {"D49 inputs: as torch has it", kInputs, {in(F8), in(BF16)}, false, Cause::None, INT, "--"},
    {"D11 explicit dtype before the lists",
     kLower,
     {in(F32), in(F32)},
     true,
     Cause::None,
     INT,
     "--"},
    {"D11 explicit out before in place",
     kPromote,
     {target(F32), in(BF16)},
     true,
     Cause::None,
     INT,
     "--"},

    {"D11 fp32: all inputs", kFp32, {in(BF16), in(F16)}, false, Cause::Fp32, F32, "xx"},
    {"fp32: float32 stays", kFp32, {in(F32), in(BF16)}, false, Cause::Fp32, F32, "-x"},
    {"D4 rest=fp32 is told apart", kRestFp32, {in(BF16)}, false, Cause::RestFp32, F32, "x"},

    {"D14 norm in lower: the first argument only",
     kLower,
     {in(F32), statistic(F32), statistic(F32), affine(F32), affine(F32)},
     false,
     Cause::Lower,
     BF16,
     "x----"},
    {"D14 norm in fp32: all but the statistics",
     kFp32,
     {in(BF16), statistic(F32), statistic(F32), affine(BF16), affine(BF16)},
     false,
     Cause::Fp32,
     F32,
     "x--xx"},
    {"D14 norm in fp32: low statistics leave it alone",
     kFp32,
     {in(BF16), statistic(BF16), statistic(BF16), affine(BF16), affine(BF16)},
     false,
     Cause::None,
     INT,
     "-----"},
    {"D14 norm in fp32: one low statistic does",
     kFp32,
     {in(BF16), statistic(F32), statistic(F16)},
     false,
     Cause::None,
     INT,
     "---"},
    {"D14 norm in rest of O2: low statistics leave it alone",
     kRestFp32,
     {in(BF16), statistic(BF16), affine(BF16)},
     false,
     Cause::None,
     INT,
     "---"},
    {"D14 norm in lower: low statistics do not matter",
     kLower,
     {in(F32), statistic(BF16), affine(F32)},
     false,
     Cause::Lower,
     BF16,
     "x--"},
    {"D14 norm in rest: nothing but the first argument counts",
     kFirst,
     {in(BF16), statistic(F32), affine(F32)},
     false,
     Cause::FirstInput,
     BF16,
     "---"},
    {"D14 norm in rest of O2",
     kRestFp32,
     {in(BF16), statistic(F32), affine(BF16)},
     false,
     Cause::RestFp32,
     F32,
     "x-x"},
    {"D14 norm in promote: weights count",
     kPromote,
     {in(BF16), statistic(BF16), affine(F32)},
     false,
     Cause::Promote,
     F32,
     "x--"},
    {"D14 norm in lower with an integer input",
     kLower,
     {in(INT), affine(F32)},
     false,
     Cause::None,
     INT,
     "--"},

    {"D13 promote: float32 if any is",
     kPromote,
     {in(BF16), in(F32)},
     false,
     Cause::Promote,
     F32,
     "x-"},
    {"D13 promote: all low stays low",
     kPromote,
     {in(BF16), in(BF16)},
     false,
     Cause::Promote,
     BF16,
     "--"},
    {"D13 promote: float16 with bfloat16 is float32",
     kPromote,
     {in(F16), in(BF16)},
     false,
     Cause::Promote,
     F32,
     "xx"},
    {"D13 promote: one input keeps its dtype (F69)",
     kPromote,
     {in(F16)},
     false,
     Cause::Promote,
     F16,
     "-"},
    {"D13 a 0-dim tensor does not count",
     kPromote,
     {scalar(F32), in(BF16)},
     false,
     Cause::Promote,
     BF16,
     "x-"},
    {"D13 0-dim tensors alone count",
     kPromote,
     {scalar(F32), scalar(BF16)},
     false,
     Cause::Promote,
     F32,
     "-x"},
    {"D13 a 0-dim integer does not make the others 0-dim",
     kPromote,
     {scalar(INT), in(BF16), in(F32)},
     false,
     Cause::Promote,
     F32,
     "-x-"},
    {"D13 an integer tensor with dimensions is no input",
     kPromote,
     {in(INT), scalar(F32), scalar(BF16)},
     false,
     Cause::Promote,
     F32,
     "--x"},

    {"D12 in place: the target's dtype",
     kFirst,
     {target(BF16), in(F32)},
     false,
     Cause::InPlace,
     BF16,
     "-x"},
    {"D11 in place before lower",
     kLower,
     {target(F32), in(BF16)},
     false,
     Cause::InPlace,
     F32,
     "-x"},
    {"D11 in place before fp32", kFp32, {target(BF16), in(F32)}, false, Cause::InPlace, BF16, "-x"},
    {"D11 in place before promote",
     kPromote,
     {target(BF16), in(F32)},
     false,
     Cause::InPlace,
     BF16,
     "-x"},
    {"D12 in place: a norm's weights too, not its statistics",
     kLower,
     {target(BF16), affine(F32), statistic(F32)},
     false,
     Cause::InPlace,
     BF16,
     "-x-"},
    {"D12 in place on an integer tensor",
     kLower,
     {target(INT), in(F32)},
     false,
     Cause::None,
     INT,
     "--"},
    {"D12 rest=inputs leaves unlisted in-place calls alone",
     kInputs,
     {target(BF16), in(F32)},
     false,
     Cause::None,
     INT,
     "--"},
    {"D4 in place under O2", kRestFp32, {target(BF16), in(F32)}, false, Cause::InPlace, BF16, "-x"},

    {"D15 the first eligible input",
     kFirst,
     {in(BF16), in(F32)},
     false,
     Cause::FirstInput,
     BF16,
     "-x"},
    {"D15 an index is passed over (F78)",
     kFirst,
     {in(INT), in(F32), in(BF16)},
     false,
     Cause::FirstInput,
     F32,
     "--x"},
    {"D15 nothing differs", kFirst, {in(F32), in(F32)}, false, Cause::FirstInput, F32, "--"},
    {"F81 rest=inputs", kInputs, {in(BF16), in(F32)}, false, Cause::None, INT, "--"},
    {"D31 error is the front end's to raise",
     kError,
     {in(F16), in(F32)},
     false,
     Cause::None,
     INT,
     "--"},
};

std::string casts_of(const Decision& decision, const std::vector<Arg>& args) {
  std::string out;
  for (const Arg& arg : args) out += decision.casts(arg) ? 'x' : '-';
  return out;
}

// Calls body with every list of up to three arguments.
template <typename Body>
void for_all_calls(Body body) {
  std::vector<Arg> kinds;
  for (const DType dtype : {INT, F8, F16, BF16, F32, F64}) {
    for (const Role role : {Role::Input, Role::Affine, Role::Statistic, Role::Target}) {
      for (const bool zero_dim : {false, true}) kinds.push_back({dtype, zero_dim, role});
    }
  }
  body(std::vector<Arg>{});
  for (const Arg& a : kinds) {
    body(std::vector<Arg>{a});
    for (const Arg& b : kinds) {
      body(std::vector<Arg>{a, b});
      for (const Arg& c : kinds) body(std::vector<Arg>{a, b, c});
    }
  }
}

}  // namespace

TEST_CASE("decide: the cases of D10 to D15 and D49") {
  for (const Case& c : kCases) {
    SUBCASE(c.id) {
      const Decision decision = decide(c.rule, c.args, c.explicit_dtype);
      CHECK(decision.cause == c.cause);
      CHECK(decision.to == c.to);
      CHECK(casts_of(decision, c.args) == c.casts);
    }
  }
}

TEST_CASE("decide: what holds for every call of up to three tensors") {
  const std::vector<Rule> rules = {kLower,      kLower16, kFp32,     kPromote, kInt8,
                                   kWeightInt8, kFirst,   kRestFp32, kInputs,  kError};
  long wrong = 0;
  long calls = 0;
  for_all_calls([&](const std::vector<Arg>& args) {
    for (const Rule& rule : rules) {
      ++calls;
      const Decision decision = decide(rule, args, false);
      bool any_cast = false;
      bool has_float64 = false;
      bool has_target = false;
      bool has_wide = false;
      for (const Arg& arg : args) {
        const bool cast = decision.casts(arg);
        any_cast |= cast;
        has_float64 |= arg.dtype == F64;
        has_target |= arg.role == Role::Target;
        has_wide |= arg.dtype == F32;
        // D10, D11, D14, D49: never one that casts do not go from, a target or a statistic.
        if (cast &&
            (!may_be_cast(arg.dtype) || arg.role == Role::Target || arg.role == Role::Statistic))
          ++wrong;
        if (cast && arg.dtype == decision.to) ++wrong;
      }
      // D10: float64 in the call; F81; D31.
      const bool alone =
          has_float64 || rule.action == Action::Inputs || rule.action == Action::Error;
      if (alone && !(decision == kLeftAlone)) ++wrong;
      if (decision.cause == Cause::None && any_cast) ++wrong;
      // Casts go to a dtype that one can cast to.
      if (decision.cause != Cause::None && !eligible(decision.to)) ++wrong;
      // D12: a call has a target if and only if it is in place.
      if (decision.cause != Cause::None && (decision.cause == Cause::InPlace) != has_target)
        ++wrong;
      // D13: promote never narrows where all tensors have dimensions and count.
      if (decision.cause == Cause::Promote && decision.to != F32) {
        for (const Arg& arg : args) {
          const bool counts = arg.role == Role::Input || arg.role == Role::Affine;
          if (counts && eligible(arg.dtype) && !arg.zero_dim && arg.dtype != decision.to) ++wrong;
        }
      }
      // Without a float32 tensor only fp32, or promote of float16 with bfloat16, makes one.
      if (!has_wide && decision.to == F32 && rule.action != Action::Fp32 &&
          rule.action != Action::Promote)
        ++wrong;
      // casts_nothing() is sure only where nothing would be cast.
      std::uint32_t seen = 0;
      for (const Arg& arg : args) seen |= dtype_bit(arg.dtype);
      if (casts_nothing(rule, seen) && any_cast) ++wrong;
      // An explicit dtype leaves every call alone.
      if (!(decide(rule, args, true) == kLeftAlone)) ++wrong;
      // The decision is stable: done once, there is nothing left to cast.
      std::vector<Arg> after = args;
      for (Arg& arg : after) {
        if (decision.casts(arg)) arg.dtype = decision.to;
      }
      const Decision again = decide(rule, after, false);
      if (again.to != decision.to || again.cause != decision.cause ||
          casts_of(again, after).find('x') != std::string::npos)
        ++wrong;
    }
  });
  CHECK(calls == 10L * (1 + 48 + 48 * 48 + 48 * 48 * 48));
  CHECK(wrong == 0);
}

TEST_CASE("decide is a constant expression: no allocation, no state") {
  constexpr Arg args[] = {in(F32), in(F32)};
  static_assert(decide(kLower, args, false) == Decision{BF16, Cause::Lower, role_bit(Role::Input)});
}

TEST_CASE("names of dtypes and casts (F111, D25)") {
  CHECK(std::string(dtype_name(BF16)) == "bfloat16");
  CHECK(std::string(dtype_name(INT)) == "other");
  CHECK(std::string(cast_name(BF16)) == "to_bf16");
  CHECK(std::string(cast_name(F16)) == "to_fp16");
  CHECK(std::string(cast_name(F32)) == "to_fp32");
}
