// The kernels for aarch64: bfloat16 is rounded with integers, float16 by the instructions that
// every aarch64 CPU has. Those round as FPCR says, which is to nearest even unless a program
// changed it.
#include <arm_neon.h>

#include "kernels/blocks.h"

namespace habana_mp::kernels {
namespace {

uint8x16_t load_bytes(const std::byte* source) {
  return vld1q_u8(reinterpret_cast<const std::uint8_t*>(source));
}

void store_bytes(std::byte* target, uint8x16_t bytes) {
  vst1q_u8(reinterpret_cast<std::uint8_t*>(target), bytes);
}

uint16x4_t round_to_bfloat16(float32x4_t value) {
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
  const uint32x4_t size = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
  const uint32x4_t is_nan = vcgtq_u32(size, vdupq_n_u32(0x7f800000));
  return vshrn_n_u32(vbslq_u32(is_nan, quiet, rounded), 16);
}

float32x4_t widen_bfloat16(uint16x4_t low) { return vreinterpretq_f32_u32(vshll_n_u16(low, 16)); }

struct Neon {
  static constexpr std::size_t kBlock = 8;
  static constexpr bool kStreams = false;
  float32x4_t lower, upper;

  template <DType From>
  static Neon load(const std::byte* source) {
    if constexpr (From == DType::Float32) {
      return {vreinterpretq_f32_u8(load_bytes(source)),
              vreinterpretq_f32_u8(load_bytes(source + 16))};
    } else if constexpr (From == DType::Float16) {
      const float16x8_t low = vreinterpretq_f16_u8(load_bytes(source));
      return {vcvt_f32_f16(vget_low_f16(low)), vcvt_f32_f16(vget_high_f16(low))};
    } else {
      const uint16x8_t low = vreinterpretq_u16_u8(load_bytes(source));
      const uint16x8_t size = vandq_u16(low, vdupq_n_u16(0x7fff));
      const uint16x8_t is_nan = vcgtq_u16(size, vdupq_n_u16(0x7f80));
      const uint16x8_t quiet = vorrq_u16(low, vandq_u16(is_nan, vdupq_n_u16(0x0040)));
      return {widen_bfloat16(vget_low_u16(quiet)), widen_bfloat16(vget_high_u16(quiet))};
    }
  }

  template <DType To>
  void store(std::byte* target) const {
    if constexpr (To == DType::Float32) {
      store_bytes(target, vreinterpretq_u8_f32(lower));
      store_bytes(target + 16, vreinterpretq_u8_f32(upper));
    } else if constexpr (To == DType::Float16) {
      const float16x8_t low = vcombine_f16(vcvt_f16_f32(lower), vcvt_f16_f32(upper));
      store_bytes(target, vreinterpretq_u8_f16(low));
    } else {
      const uint16x8_t low = vcombine_u16(round_to_bfloat16(lower), round_to_bfloat16(upper));
      store_bytes(target, vreinterpretq_u8_u16(low));
    }
  }
};

}  // namespace

constinit const KernelTable kNeonKernels = table_of<Neon>();

}  // namespace habana_mp::kernels
