// The table of dtypes: each row by all that is made of it; and the sets of dtypes and roles.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/cast_kernels.h"
#include "policy/decide.h"
#include "policy/dtype.h"

using namespace habana_mp;

namespace {

struct Case {
  DType dtype;
  const char* name;
  const char* short_name;
  const char* cast_name;
  std::size_t bytes;
  bool eligible, low;
};

const std::vector<Case> kCases = {
    {DType::Other, "other", "other", "to_other", 0, false, false},
    {DType::Float8, "float8", "fp8", "to_fp8", 1, false, false},
    {DType::Float16, "float16", "fp16", "to_fp16", 2, true, true},
    {DType::BFloat16, "bfloat16", "bf16", "to_bf16", 2, true, true},
    {DType::Float32, "float32", "fp32", "to_fp32", 4, true, false},
    {DType::Float64, "float64", "fp64", "to_fp64", 8, false, false},
    {DType::Int8, "int8", "int8", "to_int8", 1, false, false},
};

}  // namespace

TEST_CASE("each row of the table (D9, D10, D49, F111)") {
  CHECK(kCases.size() == kDTypeCount);
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    CHECK(std::string(dtype_name(c.dtype)) == c.name);
    CHECK(std::string(row_of(c.dtype).short_name) == c.short_name);
    CHECK(std::string(cast_name(c.dtype)) == c.cast_name);
    CHECK(kernels::element_size(c.dtype) == c.bytes);
    CHECK(eligible(c.dtype) == c.eligible);
    CHECK(may_be_cast(c.dtype) == (c.eligible || c.dtype == DType::Float8));
    CHECK(may_be_low(c.dtype) == c.low);
    CHECK((low_dtype_named(c.name) == (c.low ? c.dtype : DType::Other)));
    const bool floating = c.dtype != DType::Other && c.dtype != DType::Int8;
    CHECK(((kFloatingDTypes & dtype_bit(c.dtype)) != 0) == floating);
  }
}

TEST_CASE("bfloat16 is the first of the low dtypes (D9)") {
  CHECK(std::vector<DType>(kLowDTypes.begin(), kLowDTypes.end()) ==
        std::vector<DType>{DType::BFloat16, DType::Float16});
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16"}) {
    CHECK((low_dtype_named(name) == DType::BFloat16));
  }
  CHECK((dtype_named("fp32") == DType::Float32));
  CHECK(low_dtype_named("fp32") == DType::Other);
  CHECK(low_dtype_named("torch.") == DType::Other);
  CHECK(low_dtype_named("Bf16") == DType::Other);
  CHECK(low_dtype_named("") == DType::Other);
}

TEST_CASE("kernels cast between all pairs of eligible dtypes, and no others") {
  for (const Case& from : kCases) {
    for (const Case& to : kCases) {
      CAPTURE(from.name);
      CAPTURE(to.name);
      if (from.eligible && to.eligible && from.dtype != to.dtype)
        CHECK((kernels::kernel(from.dtype, to.dtype) != nullptr));
      else
        CHECK_THROWS(kernels::kernel(from.dtype, to.dtype));
    }
  }
}

TEST_CASE("a fifth role and an eighth dtype fit, and meet no others") {
  using Sets = decide_detail::DTypeSets<5, 8>;
  constexpr auto kFifth = static_cast<Role>(4);
  constexpr auto kEighth = static_cast<DType>(7);
  constexpr Sets sets = [] {
    Sets made;
    made.add(kFifth, DType::Other);
    made.add(kFifth, kEighth);
    made.add(Role::Target, DType::Float64);
    return made;
  }();
  static_assert(sets.of(kFifth) == (dtype_bit(DType::Other) | dtype_bit(kEighth)));
  static_assert(sets.of(Role::Target) == dtype_bit(DType::Float64));
  static_assert(sets.of(Role::Input) == 0 && sets.of(Role::Affine) == 0);
  static_assert(sets.any(kEighth) && sets.any(DType::Float64) && !sets.any(DType::BFloat16));
}
