// The linear layer for AVX-512 with its bfloat16 instructions.
#include <immintrin.h>

#include "kernels/linear/linear_blocks.h"

namespace habana_mp::kernels {
namespace {

struct Avx512Bf16 {
  using Sum = __m512;
  using Weights = __m512i;
  using Pair = __m512i;
  static constexpr std::size_t kWidth = 16;
  // 24 sums, 4 registers of weights and a pair: of 32 registers
  static constexpr std::size_t kRows = 6, kSums = 4;

  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum load(const float* sums) { return _mm512_load_ps(sums); }
  static void store(float* sums, Sum sum) { _mm512_store_ps(sums, sum); }
  static Sum plus(Sum sum, Sum other) { return _mm512_add_ps(sum, other); }

  static Weights weights(const std::uint16_t* pairs) { return _mm512_loadu_si512(pairs); }
  static Pair pair(std::uint32_t pair) { return _mm512_set1_epi32(static_cast<int>(pair)); }
  static Sum add(Sum sum, Weights weights, Pair pair) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights),
                            reinterpret_cast<__m512bh>(pair));
  }

  static Sum widen(const std::uint16_t* bias) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bias));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16));
  }
  // Takes subnormals for zeros as the products do, which the casts may not.
  static void round(Sum sum, std::uint16_t* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
  }
};

struct Avx512InOrder : Avx512Bf16 {
  static Sum even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static Sum odd(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
  }
  static Sum add(Sum sum, Weights weights, Pair pair) {
    return _mm512_fmadd_ps(odd(weights), odd(pair),
                           _mm512_fmadd_ps(even(weights), even(pair), sum));
  }
};

}  // namespace

void linear_avx512_bf16(const LinearTask& task) { linear_with<Avx512Bf16, Avx512InOrder>(task); }

}  // namespace habana_mp::kernels
