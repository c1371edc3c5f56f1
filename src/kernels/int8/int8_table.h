// What the source of an instruction set offers to int8.cpp. Only declarations are here, as each of
// those sources is compiled for another CPU.
#pragma once

#include "kernels/int8/int8.h"
#include "kernels/kernel.h"

namespace habana_mp::kernels {

struct Int8Table {
  // The larger of `bits` and the largest of count numbers, each without its sign, as bits of
  // float32.
  std::uint32_t (*largest)(const float* numbers, std::size_t count, std::uint32_t bits);
  // numbers / scale, rounded to nearest even. The scale is finite, normal and that of the numbers.
  void (*round)(const float* numbers, float scale, std::size_t count, std::int8_t* q);
  // Both of bfloat16.
  std::uint32_t (*largest_bfloat16)(const std::uint16_t* numbers, std::size_t count);
  void (*round_bfloat16)(const std::uint16_t* numbers, float scale, std::size_t count,
                         std::int8_t* q);
  // `cast` takes float32 to the dtype of the result; null: the result is float32.
  void (*weight_int8)(const Int8Task<float>& task, Kernel cast);
  void (*int8)(const Int8Task<std::int8_t>& task, Kernel cast);
  // Null where there is none; which takes subnormals for zeros.
  void (*weight_int8_of_bfloat16)(const Int8Task<std::uint16_t>& task, Kernel cast) = nullptr;
};

void weight_int8_avx512_bf16(const Int8Task<std::uint16_t>& task, Kernel cast);

extern const Int8Table kInt8Scalar;
extern const Int8Table kInt8Avx2;
extern const Int8Table kInt8Avx512Vnni;
extern const Int8Table kInt8Neon;

}  // namespace habana_mp::kernels
