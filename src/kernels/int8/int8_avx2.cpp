// Products of int8 weights for AVX2 with FMA.
#include <immintrin.h>

#include "kernels/int8/int8_blocks.h"

namespace habana_mp::kernels {
namespace {

__m256i load_bytes(const std::int8_t* source) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
}

struct Avx2Float {
  using Sum = __m256;
  using Weights = __m256i;
  // 8 sums, or 12, of 16 registers
  static constexpr std::size_t kWidth = 8, kRows = 4, kConvertedRows = 6, kConvertedSums = 2;
  static constexpr std::size_t sums(std::size_t rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

  static Sum zero() { return _mm256_setzero_ps(); }
  static Sum load(const float* sums) { return _mm256_load_ps(sums); }
  static void store(float* sums, Sum sum) { _mm256_store_ps(sums, sum); }
  static Sum spread(const float* number) { return _mm256_broadcast_ss(number); }
  static Sum add(Sum sum, Sum number, Sum q) { return _mm256_fmadd_ps(number, q, sum); }

  static Weights weights(const std::int8_t* weights) { return load_bytes(weights); }
  template <std::size_t kInput>
  static Sum widen(Weights weights) {
    constexpr int kAbove = 24 - 8 * static_cast<int>(kInput);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(weights, kAbove), 24));
  }
};

// An operand of the instruction is unsigned: it is |x|, and the weights have the sign of x. Two
// products of 127 by 127 fit in 16 bits.
struct Avx2Int {
  using Sum = __m256i;
  using Weights = __m256i;
  struct Four {
    __m256i x, magnitude;
  };
  static constexpr std::size_t kWidth = 8, kRows = 4;
  static constexpr std::int32_t kExcess = 0;
  static constexpr std::size_t sums(std::size_t rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

  static Sum zero() { return _mm256_setzero_si256(); }
  static Sum load(const std::int32_t* sums) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(sums));
  }
  static void store(std::int32_t* sums, Sum sum) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums), sum);
  }
  static Four spread(const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i all = _mm256_set1_epi32(four);
    return {all, _mm256_abs_epi8(all)};
  }
  static Weights weights(const std::int8_t* weights) { return load_bytes(weights); }
  static Sum add(Sum sum, Weights weights, const Four& four) {
    const __m256i pairs = _mm256_maddubs_epi16(four.magnitude, _mm256_sign_epi8(weights, four.x));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

}  // namespace

constinit const Int8Table kInt8Avx2 = int8_table_of<Avx2Float, Avx2Int>();

}  // namespace habana_mp::kernels
