// The kernels for AVX-512 with its bfloat16 instructions.
#include "kernels/lanes_avx512.h"

namespace habana_mp::kernels {
namespace {

// Tested as integers: where MXCSR says that subnormals are zeros (torch.set_flush_denormal),
// vfpclass finds none. Most blocks are done with the first test; those with zeros take the second.
bool any_subnormal(__m512 lower, __m512 upper) {
  const __m512i first = _mm512_castps_si512(lower), second = _mm512_castps_si512(upper);
  const __m512i exponent = _mm512_set1_epi32(0x7f800000), fraction = _mm512_set1_epi32(0x007fffff);
  const __mmask16 first_tiny = _mm512_testn_epi32_mask(first, exponent);
  const __mmask16 second_tiny = _mm512_testn_epi32_mask(second, exponent);
  if (_kortestz_mask16_u8(first_tiny, second_tiny)) return false;
  return !_kortestz_mask16_u8(_mm512_mask_test_epi32_mask(first_tiny, first, fraction),
                              _mm512_mask_test_epi32_mask(second_tiny, second, fraction));
}

struct WithInstruction {
  static __m512i narrow(__m512 lower, __m512 upper) {
    // The instruction takes subnormals for zeros, whatever MXCSR says.
    if (any_subnormal(lower, upper)) [[unlikely]]
      return WithIntegers::narrow(lower, upper);
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper, lower));
  }
};

}  // namespace

constinit const KernelTable kAvx512Bf16Kernels = table_of<Avx512<WithInstruction>>();

}  // namespace habana_mp::kernels
