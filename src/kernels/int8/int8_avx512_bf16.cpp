// Products of int8 weights by bfloat16 for AVX-512 with its bfloat16 instructions.
#include <immintrin.h>

#include <bit>

#include "kernels/int8/int8_blocks.h"

namespace habana_mp::kernels {
namespace {

// The bytes of whole numbers in bfloat16
struct alignas(64) Tables {
  std::uint8_t lower[128], upper[128];
};
constexpr Tables tables() {
  Tables made{};
  for (std::uint32_t q = 0; q < 128; ++q) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(q));
    made.lower[q] = static_cast<std::uint8_t>(bits >> 16);
    made.upper[q] = static_cast<std::uint8_t>(bits >> 24);
  }
  return made;
}
constexpr Tables kTables = tables();

// 32 bits of a register have two inputs of an output.
struct Avx512Bf16 {
  using X = std::uint16_t;
  using Sum = __m512;
  using Weights = __m512i;
  using Term = __m512i;
  // 16 sums of 32 registers, as widen() has eight constants; or 24
  static constexpr std::size_t kTerm = 2, kWidth = 16, kRows = 8, kFusedRows = 8,
                               kConvertedRows = 6, kConvertedSums = 4, kConvertedChunk = 128;
  static constexpr std::size_t sums(std::size_t rows) { return rows < 4 ? 4 : 2; }

  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum load(const float* sums) { return _mm512_load_ps(sums); }
  static void store(float* sums, Sum sum) { _mm512_store_ps(sums, sum); }
  static Term load(const std::uint16_t* pairs) { return _mm512_load_si512(pairs); }
  static void store(std::uint16_t* pairs, Term pair) { _mm512_store_si512(pairs, pair); }
  static Term spread(const std::uint16_t* x) {
    std::int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static Sum add(Sum sum, Term pair, Term q) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(q), reinterpret_cast<__m512bh>(pair));
  }

  static Weights weights(const std::int8_t* weights) { return _mm512_loadu_si512(weights); }
  // By tables of the bytes of |q| in bfloat16: both bytes of 64 numbers, then those of two inputs
  // beside each other.
  template <std::size_t kInput>
  static Term widen(Weights weights) {
    // In each 128 bits the first two inputs of four outputs, then the other two.
    const __m512i moved =
        _mm512_shuffle_epi8(weights, _mm512_broadcast_i32x4(_mm_setr_epi8(
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)));
    const __m512i magnitude = _mm512_abs_epi8(moved);
    const __m512i lower = looked_up(kTables.lower, magnitude);
    const __m512i upper = looked_up(kTables.upper, magnitude);
    constexpr int kOrAnd = 0xf8;
    const __m512i with_sign =
        _mm512_ternarylogic_epi32(upper, moved, _mm512_set1_epi8(-128), kOrAnd);
    return kInput == 0 ? _mm512_unpacklo_epi8(lower, with_sign)
                       : _mm512_unpackhi_epi8(lower, with_sign);
  }

 private:
  static __m512i looked_up(const std::uint8_t (&table)[128], __m512i index) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
  }
};

}  // namespace

void weight_int8_avx512_bf16(const Int8Task<std::uint16_t>& task, Kernel cast) {
  product_with<Avx512Bf16>(task, cast);
}

}  // namespace habana_mp::kernels
