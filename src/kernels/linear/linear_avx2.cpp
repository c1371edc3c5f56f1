// The linear layer for AVX2 with FMA. A pair becomes two floats, by a mask and by a shift.
#include <immintrin.h>

#include "kernels/linear/linear_blocks.h"

namespace habana_mp::kernels {
namespace {

struct Avx2 {
  using Sum = __m256;
  struct Weights {
    __m256 even, odd;
  };
  using Pair = Weights;
  static constexpr std::size_t kWidth = 8;
  // 8 sums, 4 registers of weights and 2 of a pair: of 16 registers
  static constexpr std::size_t kRows = 4, kSums = 2;

  static Sum zero() { return _mm256_setzero_ps(); }
  static Sum load(const float* sums) { return _mm256_load_ps(sums); }
  static void store(float* sums, Sum sum) { _mm256_store_ps(sums, sum); }
  static Sum plus(Sum sum, Sum other) { return _mm256_add_ps(sum, other); }

  static Weights floats(__m256i pairs) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, upper))};
  }
  static Weights weights(const std::uint16_t* pairs) {
    return floats(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)));
  }
  static Pair pair(std::uint32_t pair) { return floats(_mm256_set1_epi32(static_cast<int>(pair))); }
  static Sum add(Sum sum, const Weights& weights, const Pair& pair) {
    return _mm256_fmadd_ps(weights.even, pair.even, _mm256_fmadd_ps(weights.odd, pair.odd, sum));
  }

  static Sum widen(const std::uint16_t* bias) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bias));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16));
  }
  static void round(Sum sum, std::uint16_t* out) {
    const __m256i bits = _mm256_castps_si256(sum);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i carried =
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256 is_nan = _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q);
    const __m256i low =
        _mm256_srli_epi32(_mm256_blendv_epi8(carried, quiet, _mm256_castps_si256(is_nan)), 16);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out),
        _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
  }
};

}  // namespace

void linear_avx2(const LinearTask& task) { linear_with<Avx2>(task); }

}  // namespace habana_mp::kernels
