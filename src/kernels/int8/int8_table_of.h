// From lanes to the table of an instruction set. As in blocks.h all here is local to the file that
// includes it, which is compiled for a CPU of its own.
#pragma once

#include <bit>
#include <cstring>

#include "kernels/int8/int8_blocks.h"

namespace habana_mp::kernels {
namespace {

// Loops that compilers turn into instructions of the CPU.
std::uint32_t largest(const float* numbers, std::size_t count, std::uint32_t bits) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t one;
    std::memcpy(&one, numbers + i, sizeof one);
    one &= 0x7fffffff;
    bits = one > bits ? one : bits;
  }
  return bits;
}

// A quotient is at most 127 and a few roundings. Numbers of 2^23 to 2^24 are whole: adding 1.5
// times 2^23 rounds to nearest even, and leaves the result in the low bits.
void round_numbers(const float* numbers, float scale, std::size_t count, std::int8_t* q) {
  for (std::size_t i = 0; i < count; ++i) {
    const float moved = numbers[i] / scale + 12582912.0F;
    std::int32_t bits;
    std::memcpy(&bits, &moved, sizeof bits);
    q[i] = static_cast<std::int8_t>(bits - 0x4b400000);
  }
}

// The same of bfloat16, without a copy in float32.
std::uint32_t largest_bfloat16(const std::uint16_t* numbers, std::size_t count) {
  std::uint16_t bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto one = static_cast<std::uint16_t>(numbers[i] & 0x7fff);
    bits = one > bits ? one : bits;
  }
  return std::uint32_t{bits} << 16;
}

void round_bfloat16(const std::uint16_t* numbers, float scale, std::size_t count, std::int8_t* q) {
  for (std::size_t i = 0; i < count; ++i) {
    const float moved = std::bit_cast<float>(std::uint32_t{numbers[i]} << 16) / scale + 12582912.0F;
    q[i] = static_cast<std::int8_t>(std::bit_cast<std::int32_t>(moved) - 0x4b400000);
  }
}

template <class FloatLanes, class IntLanes>
constexpr Int8Table int8_table_of() {
  return {largest,
          round_numbers,
          largest_bfloat16,
          round_bfloat16,
          product_with<FloatLanes>,
          whole_product_with<IntLanes>};
}

}  // namespace
}  // namespace habana_mp::kernels
