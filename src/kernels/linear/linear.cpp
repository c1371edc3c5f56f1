// Which variant runs, and the check of the layout. See linear.h.
#include "kernels/linear/linear.h"

#include "kernels/cast_kernels.h"
#include "kernels/linear/linear_variants.h"

namespace habana_mp::kernels {

bool is_packed(const PackedWeight& packed, std::size_t size, const std::uint16_t* plain,
               std::ptrdiff_t row_stride) {
  if (size != packed.size()) return false;
  for (std::size_t output = 0; output < packed.panels() * PackedWeight::kPanel; ++output) {
    const bool filled = output >= packed.outputs;
    const std::uint16_t* row =
        filled ? nullptr : plain + static_cast<std::ptrdiff_t>(output) * row_stride;
    for (std::size_t input = 0; input < packed.filled_inputs(); ++input) {
      const std::uint16_t expected = filled || input >= packed.inputs ? 0 : row[input];
      if (packed.data[packed.place(output, input)] != expected) return false;
    }
  }
  return true;
}

void linear(const LinearTask& task) {
  switch (active()) {
#if defined(__x86_64__)
    case Variant::Avx512Bf16:
      return linear_avx512_bf16(task);
    // Without its instruction for bfloat16 AVX-512 has no variant of its own.
    case Variant::Avx512:
    case Variant::Avx2:
      return __builtin_cpu_supports("fma") ? linear_avx2(task) : linear_scalar(task);
#elif defined(__aarch64__)
    case Variant::Neon:
      return linear_neon(task);
#endif
    default:
      return linear_scalar(task);
  }
}

}  // namespace habana_mp::kernels
