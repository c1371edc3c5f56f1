// The kernels for AVX-512 (F, BW, DQ, VL): bfloat16 is rounded with integers.
#include "kernels/lanes_avx512.h"

namespace habana_mp::kernels {

constinit const KernelTable kAvx512Kernels = table_of<Avx512<WithIntegers>>();

}  // namespace habana_mp::kernels
