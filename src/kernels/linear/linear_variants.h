// What the source file of an instruction set offers to linear.cpp. Only declarations stand here, as
// each of those files is compiled for another CPU.
#pragma once

#include "kernels/linear/linear.h"

namespace habana_mp::kernels {

void linear_scalar(const LinearTask& task);
void linear_avx2(const LinearTask& task);  // needs FMA too
void linear_avx512_bf16(const LinearTask& task);
void linear_neon(const LinearTask& task);

}  // namespace habana_mp::kernels
