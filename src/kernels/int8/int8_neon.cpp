// Products of int8 weights for aarch64, with what every such CPU has.
#include <arm_neon.h>

#include "kernels/int8/int8_table_of.h"

namespace habana_mp::kernels {
namespace {

struct NeonFloat {
  using X = float;
  using Sum = float32x4_t;
  using Term = float32x4_t;
  using Weights = int32x4_t;
  // 16 sums, or 24, of 32 registers
  static constexpr std::size_t kTerm = 1, kWidth = 4, kRows = 4, kFusedRows = 4, kConvertedRows = 6,
                               kConvertedSums = 4, kConvertedChunk = 64;
  static constexpr std::size_t sums(std::size_t rows) { return rows == 1 ? 16 : rows == 2 ? 8 : 4; }

  static Sum zero() { return vdupq_n_f32(0); }
  static Sum load(const float* sums) { return vld1q_f32(sums); }
  static void store(float* sums, Sum sum) { vst1q_f32(sums, sum); }
  static Sum spread(const float* number) { return vld1q_dup_f32(number); }
  static Sum add(Sum sum, Sum number, Sum q) { return vfmaq_f32(sum, number, q); }

  static Weights weights(const std::int8_t* weights) {
    return vreinterpretq_s32_s8(vld1q_s8(weights));
  }
  template <std::size_t kInput>
  static Sum widen(Weights weights) {
    return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(weights, 24 - 8 * kInput), 24));
  }
};

struct NeonInt {
  using Sum = int32x4_t;
  using Weights = int8x16_t;
  static constexpr std::size_t kWidth = 4, kRows = 4;
  static constexpr bool kHasExcess = false;
  static constexpr std::size_t sums(std::size_t rows) { return rows == 1 ? 16 : rows == 2 ? 8 : 4; }

  static Sum zero() { return vdupq_n_s32(0); }
  static Sum load(const std::int32_t* sums) { return vld1q_s32(sums); }
  static void store(std::int32_t* sums, Sum sum) { vst1q_s32(sums, sum); }
  static Weights spread(const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static Weights weights(const std::int8_t* weights) { return vld1q_s8(weights); }
  // Two products of 127 by 127 fit in 16 bits.
  static Sum add(Sum sum, Weights weights, Weights four) {
    const int16x8_t lower = vmull_s8(vget_low_s8(weights), vget_low_s8(four));
    const int16x8_t upper = vmull_high_s8(weights, four);
    return vpadalq_s16(sum, vpaddq_s16(lower, upper));
  }
};

}  // namespace

constinit const Int8Table kInt8Neon = int8_table_of<NeonFloat, NeonInt>();

}  // namespace habana_mp::kernels
