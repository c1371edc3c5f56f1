// Products of int8 weights for AVX2 with FMA.
#include <immintrin.h>

#include "kernels/int8/int8_table_of.h"

namespace habana_mp::kernels {
namespace {

__m256i load_bytes(const std::int8_t* source) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
}

struct Avx2Float {
  using X = float;
  using Sum = __m256;
  using Term = __m256;
  using Weights = __m256i;
  // 8 sums, or 12, of 16 registers
  static constexpr std::size_t kTerm = 1, kWidth = 8, kRows = 6, kFusedRows = 12,
                               kConvertedRows = 6, kConvertedSums = 2, kConvertedChunk = 64;
  static constexpr std::size_t sums(std::size_t rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

  static Sum zero() { return _mm256_setzero_ps(); }
  static Sum load(const float* sums) { return _mm256_load_ps(sums); }
  static void store(float* sums, Sum sum) { _mm256_store_ps(sums, sum); }
  static Sum spread(const float* number) { return _mm256_broadcast_ss(number); }
  static Sum add(Sum sum, Sum number, Sum q) { return _mm256_fmadd_ps(number, q, sum); }

  static Weights weights(const std::int8_t* weights) { return load_bytes(weights); }
  // For two inputs q + 128 becomes the low bits of a float of 2^23 or 2^15: shifts for all four are
  // more than the ports for shifts can do beside the memory.
  template <std::size_t kInput>
  static Sum widen(Weights weights) {
    if constexpr (kInput < 2) {
      constexpr bool kFirst = kInput == 0;
      const __m256i byte = _mm256_and_si256(weights, _mm256_set1_epi32(kFirst ? 0xff : 0xff00));
      const __m256i moved =
          _mm256_xor_si256(byte, _mm256_set1_epi32(kFirst ? 0x4b000080 : 0x47008000));
      return _mm256_sub_ps(_mm256_castsi256_ps(moved),
                           _mm256_set1_ps(kFirst ? 8388736.0F : 32896.0F));
    } else {
      const __m256i last = kInput == 2 ? _mm256_slli_epi32(weights, 8) : weights;
      return _mm256_cvtepi32_ps(_mm256_srai_epi32(last, 24));
    }
  }
};

// An operand of the instruction is unsigned: it is |x|. Where x is negative the other one is not -w
// but -w - 1, which is one operation on any port: so a sum has the sum of the negative x too much,
// which is the same for all outputs. Two products of 127 by -128 fit in 16 bits.
struct Avx2Int {
  using Sum = __m256i;
  using Weights = __m256i;
  struct Four {
    __m256i magnitude, is_negative;
  };
  // 8 sums of 16 registers
  static constexpr std::size_t kWidth = 8, kRows = 2;
  static constexpr bool kHasExcess = true;
  static constexpr std::size_t sums(std::size_t rows) { return rows == 1 ? 8 : 4; }

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
    return {_mm256_abs_epi8(all), _mm256_cmpgt_epi8(_mm256_setzero_si256(), all)};
  }
  static Weights weights(const std::int8_t* weights) { return load_bytes(weights); }
  static Sum add(Sum sum, Weights weights, const Four& four) {
    return add_pairs(
        sum, _mm256_maddubs_epi16(four.magnitude, _mm256_xor_si256(weights, four.is_negative)));
  }

  static std::int32_t excess(const std::int8_t* x, std::size_t count) {
    Sum sum = zero();
    for (std::size_t i = 0; i < count; i += 32) {
      __m256i some = zero();
      if (count - i >= 32) {
        some = load_bytes(x + i);
      } else {
        std::memcpy(&some, x + i, count - i);
      }
      const __m256i negative = _mm256_min_epi8(some, zero());
      sum = add_pairs(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), negative));
    }
    std::int32_t sums[kWidth], all = 0;
    std::memcpy(sums, &sum, sizeof sums);
    for (const std::int32_t one : sums) all += one;
    return all;
  }

 private:
  static Sum add_pairs(Sum sum, __m256i pairs) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

}  // namespace

constinit const Int8Table kInt8Avx2 = int8_table_of<Avx2Float, Avx2Int>();

}  // namespace habana_mp::kernels
