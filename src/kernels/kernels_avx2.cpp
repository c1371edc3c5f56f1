// The kernels for AVX2 with F16C: bfloat16 is rounded with integers.
#include <immintrin.h>

#include "kernels/blocks.h"

namespace habana_mp::kernels {
namespace {

__m256i load_bytes(const std::byte* source) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
}

// The 32 bits of each lane rounded to the upper 16, which are left there.
__m256i rounded(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

__m256i rounded_or_nan(__m256i bits) {
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i is_nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
  return _mm256_blendv_epi8(rounded(bits), quiet, is_nan);
}

// One comparison finds the NaNs of both, which are rare: without them there is half the work.
__m256i to_bfloat16(__m256 lower, __m256 upper) {
  __m256i first = _mm256_castps_si256(lower), second = _mm256_castps_si256(upper);
  if (_mm256_movemask_ps(_mm256_cmp_ps(lower, upper, _CMP_UNORD_Q)) == 0) [[likely]] {
    first = rounded(first);
    second = rounded(second);
  } else {
    first = rounded_or_nan(first);
    second = rounded_or_nan(second);
  }
  // Packing works within halves of a register: 0 2 1 3 puts them in order.
  return _mm256_permute4x64_epi64(
      _mm256_packus_epi32(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16)), 0xd8);
}

struct Avx2 {
  static constexpr std::size_t kBlock = 16;
  static constexpr bool kStreams = true;
  __m256 lower, upper;

  template <DType From>
  static Avx2 load(const std::byte* source) {
    if constexpr (From == DType::Float32) {
      return {_mm256_castsi256_ps(load_bytes(source)),
              _mm256_castsi256_ps(load_bytes(source + 32))};
    } else {
      const __m256i low = load_bytes(source);
      const __m128i first = _mm256_castsi256_si128(low), second = _mm256_extracti128_si256(low, 1);
      if constexpr (From == DType::Float16) {
        return {_mm256_cvtph_ps(first), _mm256_cvtph_ps(second)};
      } else {
        return {widen_bfloat16(first), widen_bfloat16(second)};
      }
    }
  }

  static __m256 widen_bfloat16(__m128i low) {
    const __m128i size = _mm_and_si128(low, _mm_set1_epi16(0x7fff));
    const __m128i is_nan = _mm_cmpgt_epi16(size, _mm_set1_epi16(0x7f80));
    const __m128i quiet = _mm_or_si128(low, _mm_and_si128(is_nan, _mm_set1_epi16(0x0040)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(quiet), 16));
  }

  // Both low types as one register.
  template <DType To>
  __m256i narrow() const {
    if constexpr (To == DType::Float16) {
      return _mm256_set_m128i(_mm256_cvtps_ph(upper, _MM_FROUND_TO_NEAREST_INT),
                              _mm256_cvtps_ph(lower, _MM_FROUND_TO_NEAREST_INT));
    } else {
      return to_bfloat16(lower, upper);
    }
  }

  template <DType To>
  void store(std::byte* target) const {
    if constexpr (To == DType::Float32) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm256_castps_si256(lower));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + 32), _mm256_castps_si256(upper));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), narrow<To>());
    }
  }

  template <DType To>
  void stream(std::byte* target) const {
    if constexpr (To == DType::Float32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target), _mm256_castps_si256(lower));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target + 32), _mm256_castps_si256(upper));
    } else {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target), narrow<To>());
    }
  }

  static void fence() { _mm_sfence(); }
};

}  // namespace

constinit const KernelTable kAvx2Kernels = table_of<Avx2>();

}  // namespace habana_mp::kernels
