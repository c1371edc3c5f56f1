// Products of int8 weights for AVX-512 with VNNI.
#include <immintrin.h>

#include "kernels/int8/int8_table_of.h"

namespace habana_mp::kernels {
namespace {

struct Avx512Float {
  using X = float;
  using Sum = __m512;
  using Term = __m512;
  using Weights = __m512i;
  // 16 sums, or 24, of 32 registers: widen() has six constants
  static constexpr std::size_t kTerm = 1, kWidth = 16, kRows = 8, kFusedRows = 8,
                               kConvertedRows = 6, kConvertedSums = 4, kConvertedChunk = 64;
  static constexpr std::size_t sums(std::size_t rows) { return rows <= 4 ? 4 : 2; }

  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum load(const float* sums) { return _mm512_load_ps(sums); }
  static void store(float* sums, Sum sum) { _mm512_store_ps(sums, sum); }
  static Sum spread(const float* number) { return _mm512_set1_ps(*number); }
  static Sum add(Sum sum, Sum number, Sum q) { return _mm512_fmadd_ps(number, q, sum); }

  static Weights weights(const std::int8_t* weights) { return _mm512_loadu_si512(weights); }
  // q + 128 becomes the low bits of a float of 2^23 or, from its second byte, of 2^15: without the
  // shifts of which a CPU does one at a time.
  template <std::size_t kInput>
  static Sum widen(Weights weights) {
    constexpr bool kSecond = kInput % 2 != 0;
    constexpr int kAndThenXor = 0x6a;
    const __m512i two = kInput < 2 ? weights : _mm512_srli_epi32(weights, 16);
    const __m512i moved = _mm512_ternarylogic_epi32(
        two, _mm512_set1_epi32(kSecond ? 0xff00 : 0xff),
        _mm512_set1_epi32(kSecond ? 0x47008000 : 0x4b000080), kAndThenXor);
    return _mm512_sub_ps(_mm512_castsi512_ps(moved),
                         _mm512_set1_ps(kSecond ? 32896.0F : 8388736.0F));
  }
};

// An operand of the instruction is unsigned: it is the weight plus 128. So a sum has 128 times the
// sum of x too much, which is the same for all outputs: adding 128 to a weight is one operation for
// all rows of a walk, where |x| and weights with the sign of x would be one for each product, and x
// plus 128 would need the sum of each output's weights.
struct Avx512VnniInt {
  using Sum = __m512i;
  using Weights = __m512i;
  // 24 sums, 4 registers of weights, an x and a constant: of 32 registers
  static constexpr std::size_t kWidth = 16, kRows = 6;
  static constexpr bool kHasExcess = true;
  static constexpr std::size_t sums(std::size_t) { return 4; }

  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum load(const std::int32_t* sums) { return _mm512_load_si512(sums); }
  static void store(std::int32_t* sums, Sum sum) { _mm512_store_si512(sums, sum); }
  static __m512i spread(const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Weights weights(const std::int8_t* weights) {
    return _mm512_xor_si512(_mm512_loadu_si512(weights), _mm512_set1_epi8(-128));
  }
  static Sum add(Sum sum, Weights weights, __m512i four) {
    return _mm512_dpbusd_epi32(sum, weights, four);
  }

  static std::int32_t excess(const std::int8_t* x, std::size_t count) {
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i sum = _mm512_setzero_si512();
    for (; count >= 64; count -= 64, x += 64) {
      sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(x));
    }
    const __m512i rest = _mm512_maskz_loadu_epi8((std::uint64_t{1} << count) - 1, x);
    return 128 * _mm512_reduce_add_epi32(_mm512_dpbusd_epi32(sum, ones, rest));
  }
};

}  // namespace

constinit const Int8Table kInt8Avx512Vnni = int8_table_of<Avx512Float, Avx512VnniInt>();

}  // namespace habana_mp::kernels
