// Two registers of AVX-512 (F, BW, DQ, VL), for both of its variants; `Bf16` is how two of them
// become one of bfloat16. Local to the file that includes it: see blocks.h.
#pragma once

#include <immintrin.h>

#include "kernels/blocks.h"

namespace habana_mp::kernels {
namespace {

// For _mm512_fpclass_ps_mask
constexpr int kQuietNan = 0x01, kSignallingNan = 0x80;

__m512i load_bytes(const std::byte* source) { return _mm512_loadu_si512(source); }

// Each lane rounded to its upper 16 bits, with integers; the lower 16 are left over.
__m512i round_to_bfloat16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 is_nan = _mm512_fpclass_ps_mask(value, kQuietNan | kSignallingNan);
  return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
}

struct WithIntegers {
  static __m512i narrow(__m512 lower, __m512 upper) {
    // The odd ones of the 64 halves: 1, 3, 5 ...
    const __m512i odd =
        _mm512_setr_epi32(0x00030001, 0x00070005, 0x000b0009, 0x000f000d, 0x00130011, 0x00170015,
                          0x001b0019, 0x001f001d, 0x00230021, 0x00270025, 0x002b0029, 0x002f002d,
                          0x00330031, 0x00370035, 0x003b0039, 0x003f003d);
    return _mm512_permutex2var_epi16(round_to_bfloat16(lower), odd, round_to_bfloat16(upper));
  }
};

template <class Bf16>
struct Avx512 {
  static constexpr std::size_t kBlock = 32;
  static constexpr bool kStreams = true;
  __m512 lower, upper;

  template <DType From>
  static Avx512 load(const std::byte* source) {
    if constexpr (From == DType::Float32) {
      return {_mm512_castsi512_ps(load_bytes(source)),
              _mm512_castsi512_ps(load_bytes(source + 64))};
    } else if constexpr (From == DType::Float16) {
      return {_mm512_cvtph_ps(load_half(source)), _mm512_cvtph_ps(load_half(source + 32))};
    } else {
      return {widen_bfloat16(load_half(source)), widen_bfloat16(load_half(source + 32))};
    }
  }

  static __m256i load_half(const std::byte* source) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  }

  static __m512 widen_bfloat16(__m256i low) {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16);
    const __mmask16 signals = _mm512_fpclass_ps_mask(_mm512_castsi512_ps(bits), kSignallingNan);
    return _mm512_castsi512_ps(
        _mm512_mask_or_epi32(bits, signals, bits, _mm512_set1_epi32(0x00400000)));
  }

  // Both low types as one register.
  template <DType To>
  __m512i narrow() const {
    if constexpr (To == DType::Float16) {
      const __m256i first = _mm512_cvtps_ph(lower, _MM_FROUND_TO_NEAREST_INT);
      const __m256i second = _mm512_cvtps_ph(upper, _MM_FROUND_TO_NEAREST_INT);
      return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    } else {
      return Bf16::narrow(lower, upper);
    }
  }

  template <DType To>
  void store(std::byte* target) const {
    if constexpr (To == DType::Float32) {
      _mm512_storeu_ps(target, lower);
      _mm512_storeu_ps(target + 64, upper);
    } else {
      _mm512_storeu_si512(target, narrow<To>());
    }
  }

  template <DType To>
  void stream(std::byte* target) const {
    if constexpr (To == DType::Float32) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target), _mm512_castps_si512(lower));
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target + 64), _mm512_castps_si512(upper));
    } else {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target), narrow<To>());
    }
  }

  static void fence() { _mm_sfence(); }
};

}  // namespace
}  // namespace habana_mp::kernels
