// The kernels of any CPU, in integers: nothing here depends on the state of the floating-point
// unit. They say what the other variants compute.
#include <bit>

#include "kernels/blocks.h"

namespace habana_mp::kernels {
namespace {

std::uint32_t from_bfloat16(std::uint16_t low) {
  const std::uint32_t bits = std::uint32_t{low} << 16;
  return (bits & ~kSign) > kInfinity ? bits | kQuiet : bits;
}

std::uint32_t shift_to_even(std::uint32_t value, std::uint32_t shift) {
  return (value + (1u << (shift - 1)) - 1 + (value >> shift & 1)) >> shift;
}

std::uint16_t to_float16(std::uint32_t bits) {
  constexpr std::uint32_t kRebias = (127 - 15) << 23, kSmallestNormal = 113 << 23,
                          kOverflow = 0x477ff000;  // half a step above 65504
  const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & ~kSign;
  std::uint32_t low;
  if (size > kInfinity) {
    low = 0x7e00 | (size >> 13 & 0x3ff);
  } else if (size >= kOverflow) {
    low = 0x7c00;
  } else if (size >= kSmallestNormal) {
    low = shift_to_even(size - kRebias, 13);
  } else {
    // In steps of 2^-24; what is shifted further than 25 is less than half of one.
    const std::uint32_t shift = 126 - (size >> 23);
    low = shift_to_even((size & 0x7fffff) | 0x800000, shift < 25 ? shift : 25);
  }
  return static_cast<std::uint16_t>(sign | low);
}

std::uint32_t from_float16(std::uint16_t low) {
  const std::uint32_t sign = std::uint32_t{low} << 16 & kSign, size = low & 0x7fffu;
  if (size >= 0x7c00) return sign | kInfinity | size << 13 | (size > 0x7c00 ? kQuiet : 0);
  if (size >= 0x0400) return sign | ((size << 13) + ((127 - 15) << 23));
  if (size == 0) return sign;
  const auto width = static_cast<std::uint32_t>(std::bit_width(size));  // value: size * 2^-24
  return sign | (((127 - 25 + width) << 23) + ((size << (24 - width)) & 0x7fffff));
}

struct Scalar {
  static constexpr std::size_t kBlock = 1;
  static constexpr bool kStreams = false;
  std::uint32_t bits;

  template <DType From>
  static Scalar load(const std::byte* source) {
    if constexpr (From == DType::Float32) {
      std::uint32_t value;
      std::memcpy(&value, source, sizeof value);
      return {value};
    } else {
      std::uint16_t value;
      std::memcpy(&value, source, sizeof value);
      return {From == DType::BFloat16 ? from_bfloat16(value) : from_float16(value)};
    }
  }

  template <DType To>
  void store(std::byte* target) const {
    if constexpr (To == DType::Float32) {
      std::memcpy(target, &bits, sizeof bits);
    } else {
      const std::uint16_t value = To == DType::BFloat16 ? to_bfloat16(bits) : to_float16(bits);
      std::memcpy(target, &value, sizeof value);
    }
  }
};

}  // namespace

constinit const KernelTable kScalarKernels = table_of<Scalar>();

}  // namespace habana_mp::kernels
