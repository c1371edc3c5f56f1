// Which variant runs, and how weights and activations are rounded. See int8.h.
#include "kernels/int8/int8.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "kernels/cast_kernels.h"
#include "kernels/int8/int8_table.h"

namespace habana_mp::kernels {
namespace {

const Int8Table& table() {
#if defined(__x86_64__)
  // Beyond what the variants of the casts need. CPUs had VNNI before they had bfloat16, so both
  // variants of AVX-512 take it.
  static const bool has_fma = __builtin_cpu_supports("fma"),
                    has_vnni = __builtin_cpu_supports("avx512vnni"),
                    has_vbmi = __builtin_cpu_supports("avx512vbmi");
  static const Int8Table with_bfloat16 = [] {
    Int8Table both = kInt8Avx512Vnni;
    both.weight_int8_of_bfloat16 = weight_int8_avx512_bf16;
    return both;
  }();
  const Variant variant = active();
  if (variant == Variant::Scalar || !has_fma) return kInt8Scalar;
  if (variant == Variant::Avx2 || !has_vnni) return kInt8Avx2;
  return variant == Variant::Avx512Bf16 && has_vbmi ? with_bfloat16 : kInt8Avx512Vnni;
#elif defined(__aarch64__)
  return active() == Variant::Neon ? kInt8Neon : kInt8Scalar;
#else
  return kInt8Scalar;
#endif
}

// Null from float32 to float32.
Kernel cast_of(DType from, DType to) {
  return from == DType::Float32 && to == DType::Float32 ? nullptr : kernel(from, to);
}

// Of the bits of the largest number without its sign
float scale_of(std::uint32_t largest) {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  if (largest >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  const float scale = std::bit_cast<float>(largest) / 127.0F;
  return scale < std::numeric_limits<float>::min() ? 0 : scale;
}

// Numbers that are rounded at once
constexpr std::size_t kRun = 128;

// Some inputs of some outputs, as rows of contiguous numbers: those of the weight, or copies.
class Tile {
 public:
  Tile(const float* weight, std::ptrdiff_t output_stride, std::ptrdiff_t input_stride)
      : weight_(weight), output_stride_(output_stride), input_stride_(input_stride) {}

  void move(std::size_t output, std::size_t outputs, std::size_t input, std::size_t inputs) {
    const float* from = weight_ + static_cast<std::ptrdiff_t>(output) * output_stride_ +
                        static_cast<std::ptrdiff_t>(input) * input_stride_;
    if (input_stride_ == 1) {
      rows_ = from;
      row_stride_ = output_stride_;
      return;
    }
    rows_ = copies_;
    row_stride_ = kRowStride;
    // Along the shorter stride
    const bool by_inputs = std::abs(input_stride_) < std::abs(output_stride_);
    const std::size_t lines = by_inputs ? outputs : inputs, length = by_inputs ? inputs : outputs;
    for (std::size_t i = 0; i < lines; ++i) {
      for (std::size_t j = 0; j < length; ++j) {
        const auto row = static_cast<std::ptrdiff_t>(by_inputs ? i : j),
                   column = static_cast<std::ptrdiff_t>(by_inputs ? j : i);
        copies_[row * kRowStride + column] = from[row * output_stride_ + column * input_stride_];
      }
    }
  }

  const float* row(std::size_t output) const {
    return rows_ + static_cast<std::ptrdiff_t>(output) * row_stride_;
  }

 private:
  // A row begins in the set of the cache that follows the last one's.
  static constexpr std::ptrdiff_t kRowStride = kRun + 16;
  const float* weight_;
  std::ptrdiff_t output_stride_, input_stride_;
  const float* rows_ = nullptr;
  std::ptrdiff_t row_stride_ = 0;
  float copies_[Int8Weight::kPanel * kRowStride];
};

}  // namespace

void pack_int8(const float* weight, std::ptrdiff_t output_stride, std::ptrdiff_t input_stride,
               std::int8_t* data, float* scales, std::size_t outputs, std::size_t inputs,
               std::size_t first_panel, std::size_t last_panel) {
  constexpr std::size_t kPanel = Int8Weight::kPanel, kInputs = Int8Weight::kInputs;
  const Int8Table& kernels = table();
  const Int8Weight packed{data, scales, outputs, inputs};
  Tile tile(weight, output_stride, input_stride);
  for (std::size_t panel = first_panel; panel < last_panel; ++panel) {
    const std::size_t first = panel * kPanel, count = std::min(kPanel, outputs - first);
    std::uint32_t largest[kPanel] = {};
    for (std::size_t k = 0; k < inputs; k += kRun) {
      const std::size_t run = std::min(kRun, inputs - k);
      tile.move(first, count, k, run);
      for (std::size_t i = 0; i < count; ++i) {
        largest[i] = kernels.largest(tile.row(i), run, largest[i]);
      }
    }
    std::transform(largest, largest + kPanel, scales + first, scale_of);
    for (std::size_t k = 0; k < inputs; k += kRun) {
      const std::size_t run = std::min(kRun, inputs - k);
      tile.move(first, count, k, run);
      for (std::size_t i = 0; i < kPanel; ++i) {
        std::int8_t q[kRun] = {};
        const float scale = scales[first + i];
        if (scale > 0) kernels.round(tile.row(i), scale, run, q);
        std::int8_t* to = data + packed.place(first + i, k);
        for (std::size_t j = 0; j < run; j += kInputs, to += kInputs * kPanel) {
          std::memcpy(to, q + j, kInputs);
        }
      }
    }
  }
}

void dequantize_output(const Int8Weight& weight, std::size_t output, float* row) {
  const float scale = weight.scales[output];
  for (std::size_t k = 0; k < weight.inputs; ++k) {
    row[k] = static_cast<float>(weight.data[weight.place(output, k)]) * scale;
  }
}

void quantize_rows(DType from, DType via, const void* x, std::ptrdiff_t x_row_stride,
                   std::size_t rows, std::size_t inputs, std::int8_t* q, std::size_t q_row_stride,
                   float* scales) {
  constexpr std::size_t kInputs = Int8Weight::kInputs;
  const Int8Table& kernels = table();
  const Kernel widen = cast_of(from, DType::Float32), narrow = cast_of(DType::Float32, via),
               widen_again = cast_of(via, DType::Float32);
  const bool casts = via != from && narrow != nullptr;
  const auto size = static_cast<std::ptrdiff_t>(element_size(from));
  // act(numbers in float32, count, at)
  const auto each_run = [&](const std::byte* source, const auto& act) {
    float wide[kRun];
    for (std::size_t k = 0; k < inputs; k += kRun) {
      const std::size_t run = std::min(kRun, inputs - k);
      const std::byte* numbers = source + static_cast<std::ptrdiff_t>(k) * size;
      if (widen != nullptr) widen(numbers, wide, run);
      act(widen == nullptr ? reinterpret_cast<const float*>(numbers) : wide, run, k);
    }
  };
  for (std::size_t row = 0; row < rows; ++row, q += q_row_stride) {
    const std::byte* source =
        static_cast<const std::byte*>(x) + static_cast<std::ptrdiff_t>(row) * x_row_stride * size;
    const auto* low = reinterpret_cast<const std::uint16_t*>(source);
    const bool whole = from == DType::BFloat16 && via == from;
    std::uint32_t largest = 0;
    if (whole) {
      largest = kernels.largest_bfloat16(low, inputs);
    } else {
      each_run(source, [&](const float* numbers, std::size_t run, std::size_t) {
        largest = kernels.largest(numbers, run, largest);
      });
      // The largest number is the largest one after the cast, too.
      if (std::uint16_t cast; casts) {
        narrow(&largest, &cast, 1);
        widen_again(&cast, &largest, 1);
      }
    }
    const float scale = scales[row] = scale_of(largest);
    if (!(scale > 0)) {
      std::fill_n(q, inputs, std::int8_t{0});
    } else if (whole) {
      kernels.round_bfloat16(low, scale, inputs, q);
    } else {
      each_run(source, [&](const float* numbers, std::size_t run, std::size_t k) {
        std::uint16_t cast[kRun];
        if (!casts) {
          kernels.round(numbers, scale, run, q + k);
          return;
        }
        narrow(numbers, cast, run);
        if (via == DType::BFloat16) {
          kernels.round_bfloat16(cast, scale, run, q + k);
        } else {
          float again[kRun];
          widen_again(cast, again, run);
          kernels.round(again, scale, run, q + k);
        }
      });
    }
    std::fill(q + inputs, q + (inputs + kInputs - 1) / kInputs * kInputs, std::int8_t{0});
  }
}

bool multiplies_bfloat16(const std::uint16_t* x, std::size_t count) {
  if (table().weight_int8_of_bfloat16 == nullptr) return false;
  // From 2^-119 on the last bit of a number is 2^-126 or more, the smallest normal float32, and so
  // is that of all sums: they are normal or zero.
  constexpr std::uint16_t kLeast = 8 << 7;
  std::uint16_t smaller = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto before = static_cast<std::uint16_t>((x[i] & 0x7fff) - 1);  // of zero: the largest
    smaller |= before < kLeast - 1;
  }
  return smaller == 0;
}

void int8_product(const Int8Task<std::uint16_t>& task) {
  const auto product = table().weight_int8_of_bfloat16;
  if (product == nullptr) throw std::invalid_argument("no int8 product of bfloat16 on this CPU");
  product(task, cast_of(DType::Float32, task.to));
}

void int8_product(const Int8Task<float>& task) {
  table().weight_int8(task, cast_of(DType::Float32, task.to));
}

void int8_product(const Int8Task<std::int8_t>& task) {
  table().int8(task, cast_of(DType::Float32, task.to));
}

}  // namespace habana_mp::kernels
