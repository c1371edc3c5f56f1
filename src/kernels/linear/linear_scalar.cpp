// The linear layer for every CPU: exact, and slow where the compiler has to call a function for a
// fused product.
#include "kernels/linear/linear_blocks.h"

namespace habana_mp::kernels {
namespace {

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Scalar {
  using Sum = float;
  using Weights = std::uint32_t;
  using Pair = std::uint32_t;
  static constexpr std::size_t kWidth = 1;
  static constexpr std::size_t kRows = 2, kSums = 4;

  static Sum zero() { return 0; }
  static Sum load(const float* sums) { return *sums; }
  static void store(float* sums, Sum sum) { *sums = sum; }
  static Sum plus(Sum sum, Sum other) { return sum + other; }

  static Weights weights(const std::uint16_t* pairs) { return pair_at(pairs); }
  static Pair pair(std::uint32_t pair) { return pair; }
  static Sum add(Sum sum, Weights weights, Pair pair) {
    return add_even(add_odd(sum, weights, pair), weights, pair);
  }
  static Sum add_even(Sum sum, Weights weights, Pair pair) {
    return __builtin_fmaf(float_of(weights << 16), float_of(pair << 16), sum);
  }
  static Sum add_odd(Sum sum, Weights weights, Pair pair) {
    return __builtin_fmaf(float_of(weights & 0xffff0000), float_of(pair & 0xffff0000), sum);
  }

  static Sum widen(const std::uint16_t* bias) { return float_of(std::uint32_t{*bias} << 16); }
  static void round(Sum sum, std::uint16_t* out) {
    std::uint32_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? bits | 0x00400000 : bits + 0x7fff + (bits >> 16 & 1);
    *out = static_cast<std::uint16_t>(bits >> 16);
  }
};

struct ScalarInOrder : Scalar {
  static Sum add(Sum sum, Weights weights, Pair pair) {
    return add_odd(add_even(sum, weights, pair), weights, pair);
  }
};

}  // namespace

void linear_scalar(const LinearTask& task) { linear_with<Scalar, ScalarInOrder>(task); }

}  // namespace habana_mp::kernels
