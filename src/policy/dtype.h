// The floating types that casts move between: one table, from which all else about them is made. It
// must not know Python, torch or any rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace habana_mp {

// Other: integer, bool, quantised, none. Float64 stands for complex too: a call with either
// computes in a wider kind of number and is left alone (D10). Float8: any of torch's formats of
// it. Int8: what a weight is rounded to (D56); no tensor of a call counts as such.
// habana_mp._core.DTYPES names these in this order.
enum class DType : std::uint8_t { Other, Float8, Float16, BFloat16, Float32, Float64, Int8 };

struct DTypeRow {
  DType dtype;
  const char* name;        // torch's
  const char* short_name;  // where a column has little room
  const char* cast_name;   // what the cast log prints of a cast to it (F111, D25)
  std::size_t bytes;       // of one number; of Other nobody asks
  bool eligible;           // casts go from and to it (D10)
};

inline constexpr DTypeRow kDTypes[] = {
    {DType::Other, "other", "other", "to_other", 0, false},
    {DType::Float8, "float8", "fp8", "to_fp8", 1, false},
    {DType::Float16, "float16", "fp16", "to_fp16", 2, true},
    {DType::BFloat16, "bfloat16", "bf16", "to_bf16", 2, true},
    {DType::Float32, "float32", "fp32", "to_fp32", 4, true},
    {DType::Float64, "float64", "fp64", "to_fp64", 8, false},
    {DType::Int8, "int8", "int8", "to_int8", 1, false},
};
inline constexpr std::size_t kDTypeCount = std::size(kDTypes);

static_assert(
    [] {
      for (std::size_t i = 0; i < kDTypeCount; ++i) {
        if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
      }
      return true;
    }(),
    "the rows are in the order of the enum");

constexpr const DTypeRow& row_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

constexpr const char* dtype_name(DType dtype) { return row_of(dtype).name; }
constexpr const char* cast_name(DType dtype) { return row_of(dtype).cast_name; }

// A set of dtypes has a bit for each.
static_assert(kDTypeCount <= 32);
constexpr std::uint32_t dtype_bit(DType dtype) { return 1u << static_cast<unsigned>(dtype); }

inline constexpr std::uint32_t kEligibleDTypes = [] {
  std::uint32_t bits = 0;
  for (const DTypeRow& row : kDTypes) bits |= row.eligible ? dtype_bit(row.dtype) : 0;
  return bits;
}();
inline constexpr std::uint32_t kFloatingDTypes =
    ((std::uint64_t{1} << kDTypeCount) - 1) & ~(dtype_bit(DType::Other) | dtype_bit(DType::Int8));

// What casts go from: numbers are stored in float8, and ops do not compute in it (D49).
inline constexpr std::uint32_t kSourceDTypes = kEligibleDTypes | dtype_bit(DType::Float8);

// Every patched call asks of every tensor: a test of a bit, not a look into the table.
constexpr bool eligible(DType dtype) { return (kEligibleDTypes & dtype_bit(dtype)) != 0; }
constexpr bool may_be_cast(DType dtype) { return (kSourceDTypes & dtype_bit(dtype)) != 0; }

// What a policy may run its lower list in; the first is the default.
inline constexpr std::array kLowDTypes = {DType::BFloat16, DType::Float16};
inline constexpr std::uint32_t kLowBits = [] {
  std::uint32_t bits = 0;
  for (const DType low : kLowDTypes) bits |= dtype_bit(low);
  return bits;
}();
constexpr bool may_be_low(DType dtype) { return (kLowBits & dtype_bit(dtype)) != 0; }

// By any of its names: "bfloat16", "bf16", "torch.bfloat16". Other for a text that is none.
constexpr DType dtype_named(std::string_view text) {
  constexpr std::string_view kModule = "torch.";
  if (text.starts_with(kModule)) text.remove_prefix(kModule.size());
  for (const DTypeRow& row : kDTypes) {
    if (text == row.name || text == row.short_name) return row.dtype;
  }
  return DType::Other;
}

// The same, and Other for one that no policy is made for.
constexpr DType low_dtype_named(std::string_view text) {
  const DType dtype = dtype_named(text);
  return may_be_low(dtype) ? dtype : DType::Other;
}

}  // namespace habana_mp
