// The numbers of a tensor in their order, as words: float32 of what is computed in less, float64,
// or int64. A hash, the norm and a sample are taken in one pass over its memory, on the CPU by
// loops of ours, elsewhere by ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstdint>

namespace habana_mp::evidence {

// Sums that the compiler keeps apart, in one vector register or two.
inline constexpr std::int64_t kLanes = 16;

// The bits of a number as float32.
inline std::uint32_t bits_of(float number) { return std::bit_cast<std::uint32_t>(number); }
inline std::uint32_t bits_of(at::BFloat16 number) {
  return static_cast<std::uint32_t>(number.x) << 16;
}
inline std::uint32_t bits_of(at::Half number) { return bits_of(static_cast<float>(number)); }

// Whether the numbers lie in memory of the CPU, one by one, and nothing but torch owns them.
bool lies_in_memory(const at::Tensor& tensor);

// A complex number is two.
std::int64_t words_in(const at::Tensor& tensor);

// A bijection, and what is made of it depends on the place.
std::uint64_t mixed(std::uint64_t word, std::uint64_t place);

struct Wanted {
  bool hash = true;
  bool squares = false;
  std::int64_t step = 1;    // each step-th word goes to the sample
  float* sample = nullptr;  // null: none
};

// Of all words, whatever the sizes of the tensor.
struct WordSums {
  std::uint64_t hash = 0;  // the same for bfloat16 and the float32 made of it
  double squares = 0;      // of the finite numbers; NaN if they were not wanted
  void add(const WordSums& other) {
    hash += other.hash;
    squares += other.squares;
  }
};

// Of a strided tensor that can be read, on any device.
WordSums sums_of(const at::Tensor& plain, const Wanted& wanted);

}  // namespace habana_mp::evidence
