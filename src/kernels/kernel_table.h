// What the source file of an instruction set offers to the dispatch: one table of kernels. Only
// declarations stand here, as each of those files is compiled for another CPU.
#pragma once

#include "kernels/kernel.h"

namespace habana_mp::kernels {

// By the DType of the source and of the target; null where there is nothing to cast.
struct KernelTable {
  Kernel cached[kDTypeCount][kDTypeCount];
  Kernel streaming[kDTypeCount]
                  [kDTypeCount];  // the cached ones where the instruction set has no such stores
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512Bf16Kernels;
extern const KernelTable kNeonKernels;

}  // namespace habana_mp::kernels
