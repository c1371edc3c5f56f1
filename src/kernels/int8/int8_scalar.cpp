// Products of int8 weights for every CPU: exact, and slow where the compiler has to call a function
// for a fused product.
#include "kernels/int8/int8_table_of.h"

namespace habana_mp::kernels {
namespace {

struct ScalarFloat {
  using X = float;
  using Sum = float;
  using Term = float;
  using Weights = const std::int8_t*;
  static constexpr std::size_t kTerm = 1, kWidth = 1, kRows = 2, kFusedRows = 2, kConvertedRows = 2,
                               kConvertedSums = 4, kConvertedChunk = 64;
  static constexpr std::size_t sums(std::size_t) { return 4; }

  static Sum zero() { return 0; }
  static Sum load(const float* sums) { return *sums; }
  static void store(float* sums, Sum sum) { *sums = sum; }
  static Sum spread(const float* number) { return *number; }
  static Sum add(Sum sum, Sum number, Sum q) { return __builtin_fmaf(number, q, sum); }

  static Weights weights(const std::int8_t* weights) { return weights; }
  template <std::size_t kInput>
  static Sum widen(Weights weights) {
    return weights[kInput];
  }
};

struct ScalarInt {
  using Sum = std::int32_t;
  using Weights = const std::int8_t*;
  static constexpr std::size_t kWidth = 1, kRows = 2;
  static constexpr bool kHasExcess = false;
  static constexpr std::size_t sums(std::size_t) { return 4; }

  static Sum zero() { return 0; }
  static Sum load(const std::int32_t* sums) { return *sums; }
  static void store(std::int32_t* sums, Sum sum) { *sums = sum; }
  static Weights spread(const std::int8_t* x) { return x; }
  static Weights weights(const std::int8_t* weights) { return weights; }
  static Sum add(Sum sum, Weights weights, Weights x) {
    for (std::size_t i = 0; i < kInputs; ++i) sum += weights[i] * x[i];
    return sum;
  }
};

}  // namespace

constinit const Int8Table kInt8Scalar = int8_table_of<ScalarFloat, ScalarInt>();

}  // namespace habana_mp::kernels
