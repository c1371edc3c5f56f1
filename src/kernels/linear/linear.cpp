// Which variant runs. See linear.h.
#include "kernels/linear/linear.h"

#include "kernels/cast_kernels.h"

namespace habana_mp::kernels {

void linear(const LinearTask& task) {
#if defined(__x86_64__)
  if (active() == Variant::Avx512Bf16) return linear_avx512_bf16(task);
#endif
  linear_scalar(task);
}

}  // namespace habana_mp::kernels
