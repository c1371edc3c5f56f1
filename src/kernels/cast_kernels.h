// Casts between float32, bfloat16 and float16 on raw arrays: the widest instructions that the CPU
// has, chosen once. It must not know Python, torch, threads or why something is cast.
//
// Every variant gives the same bits. Finite values are rounded to nearest, ties to even;
// infinities, subnormals and signed zeros are kept, whatever the thread says of flushing or (on
// x86) rounding. A NaN becomes quiet and keeps its sign and the upper bits of its payload.
//
// Pointers may be aligned anyhow; source and target may not overlap; nothing outside is read or
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel.h"
#include "policy/dtype.h"

namespace habana_mp::kernels {

// From the plainest to the fastest.
enum class Variant : std::uint8_t { Scalar, Avx2, Avx512, Avx512Bf16, Neon };

// "scalar" "avx2" "avx512" "avx512_bf16" "neon"
const char* variant_name(Variant variant);

// What this CPU can run; the last one is the fastest.
std::span<const Variant> available();

// The fastest, or the one that the environment variable HABANA_MP_CAST_VARIANT names. Where it
// names none that this CPU has: std::invalid_argument, here and from kernel().
Variant active();

// For tests: this variant from now on, in every thread; reset() goes back and reads the environment
// again. std::invalid_argument where the CPU lacks it.
void force(Variant variant);
void reset();

constexpr std::size_t element_size(DType dtype) { return row_of(dtype).bytes; }

// Measured: from here on streaming is faster, even where the target is read right afterwards. The
// count is that of the whole cast, not of one thread's share; several threads write to the caches
// faster than one, and not to memory.
constexpr Stores stores_for(DType from, DType to, std::size_t count, bool several_threads = false) {
  const std::size_t streamed = std::size_t{several_threads ? 32u : 16u} << 20;  // read and written
  return count * (element_size(from) + element_size(to)) >= streamed ? Stores::Streaming
                                                                     : Stores::Cached;
}

// Both types are eligible and they differ, else std::invalid_argument.
Kernel kernel(DType from, DType to, Stores stores = Stores::Cached);

// Casts a matrix of any strides (counted in elements, of any sign) into contiguous rows. A
// transposed source, whose row stride is 1, is read and written in tiles.
void cast_2d(DType from, DType to, const void* source, std::ptrdiff_t source_row_stride,
             std::ptrdiff_t source_column_stride, void* target, std::ptrdiff_t target_row_stride,
             std::size_t rows, std::size_t columns, Stores stores = Stores::Cached);

}  // namespace habana_mp::kernels
