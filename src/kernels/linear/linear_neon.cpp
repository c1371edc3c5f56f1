// The linear layer for aarch64. A pair becomes two floats, by a mask and by a shift.
#include <arm_neon.h>

#include "kernels/linear/linear_blocks.h"

namespace habana_mp::kernels {
namespace {

struct Neon {
  using Sum = float32x4_t;
  struct Weights {
    float32x4_t even, odd;
  };
  using Pair = Weights;
  static constexpr std::size_t kWidth = 4;
  // 16 sums, 8 registers of weights and 2 of a pair: of 32 registers
  static constexpr std::size_t kRows = 4, kSums = 4;

  static Sum zero() { return vdupq_n_f32(0); }
  static Sum load(const float* sums) { return vld1q_f32(sums); }
  static void store(float* sums, Sum sum) { vst1q_f32(sums, sum); }
  static Sum plus(Sum sum, Sum other) { return vaddq_f32(sum, other); }

  static Weights floats(uint32x4_t pairs) {
    return {vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)),
            vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)))};
  }
  static Weights weights(const std::uint16_t* pairs) {
    return floats(vreinterpretq_u32_u16(vld1q_u16(pairs)));
  }
  static Pair pair(std::uint32_t pair) { return floats(vdupq_n_u32(pair)); }
  static Sum add(Sum sum, const Weights& weights, const Pair& pair) {
    return vfmaq_f32(vfmaq_f32(sum, weights.odd, pair.odd), weights.even, pair.even);
  }

  static Sum widen(const std::uint16_t* bias) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(bias), 16));
  }
  static void round(Sum sum, std::uint16_t* out) {
    const uint32x4_t bits = vreinterpretq_u32_f32(sum);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t carried = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    vst1_u16(out, vshrn_n_u32(vbslq_u32(vceqq_f32(sum, sum), carried, quiet), 16));
  }
};

}  // namespace

void linear_neon(const LinearTask& task) { linear_with<Neon>(task); }

}  // namespace habana_mp::kernels
