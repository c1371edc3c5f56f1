// What a cast must give, bit for bit, found another way than the kernels do it: a value is decoded
// to double, and its neighbours are searched in the table of all values of the target.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cast_kernels.h"

namespace habana_mp {

struct Format {
  int mantissa, bias;  // bits of the mantissa; exponent of 1.0 as stored
  std::uint32_t sign, infinity, quiet;
};

inline const Format& format_of(DType dtype) {
  static constexpr Format kFloat16{10, 15, 0x8000, 0x7c00, 0x0200},
      kBFloat16{7, 127, 0x8000, 0x7f80, 0x0040},
      kFloat32{23, 127, 0x80000000, 0x7f800000, 0x00400000};
  return dtype == DType::Float16 ? kFloat16 : dtype == DType::BFloat16 ? kBFloat16 : kFloat32;
}

// The magnitude; infinity stands for the power of two that would come after the largest value.
inline double decode(DType dtype, std::uint32_t bits) {
  const Format& format = format_of(dtype);
  const std::uint32_t size = bits & (format.sign - 1);
  const int exponent = static_cast<int>(size >> format.mantissa);
  const std::uint32_t fraction = size & ((1u << format.mantissa) - 1);
  if (exponent == 0) return std::ldexp(fraction, 1 - format.bias - format.mantissa);
  return std::ldexp(fraction + (1u << format.mantissa), exponent - format.bias - format.mantissa);
}

inline bool is_nan(DType dtype, std::uint32_t bits) {
  return (bits & (format_of(dtype).sign - 1)) > format_of(dtype).infinity;
}

// Magnitudes of a low type from zero to infinity, in the order of their bits.
inline const std::vector<double>& magnitudes(DType low) {
  const auto all = [](DType dtype) {
    std::vector<double> values;
    for (std::uint32_t bits = 0; bits <= format_of(dtype).infinity; ++bits) {
      values.push_back(decode(dtype, bits));
    }
    return values;
  };
  static const std::vector<double> kFloat16 = all(DType::Float16), kBFloat16 = all(DType::BFloat16);
  return low == DType::Float16 ? kFloat16 : kBFloat16;
}

inline std::uint32_t nearest_magnitude(DType to, double value) {
  if (to == DType::Float32) {  // exact: the value comes from a low type
    int exponent;
    const double fraction = std::frexp(value, &exponent);  // 0.5 <= fraction < 1
    if (value == 0) return 0;
    if (exponent < -125) return static_cast<std::uint32_t>(std::ldexp(value, 149));
    return (static_cast<std::uint32_t>(exponent + 125) << 23) +
           static_cast<std::uint32_t>(std::ldexp(fraction, 24));
  }
  const std::vector<double>& values = magnitudes(to);
  const auto above = std::lower_bound(values.begin(), values.end(), value);
  if (above == values.end()) return format_of(to).infinity;
  const auto bits = static_cast<std::uint32_t>(above - values.begin());
  if (*above == value) return bits;
  const double middle = (values[bits - 1] + values[bits]) / 2;
  if (value != middle) return value < middle ? bits - 1 : bits;
  return bits % 2 == 0 ? bits : bits - 1;
}

inline std::uint32_t reference_cast(DType from, DType to, std::uint32_t bits) {
  const Format &source = format_of(from), &target = format_of(to);
  const std::uint32_t sign = (bits & source.sign) != 0 ? target.sign : 0;
  const std::uint32_t size = bits & (source.sign - 1);
  if (size == source.infinity) return sign | target.infinity;
  if (size < source.infinity) return sign | nearest_magnitude(to, decode(from, bits));
  // A NaN keeps the upper bits of its payload and becomes quiet.
  const std::uint32_t payload = size & ((1u << source.mantissa) - 1);
  const int shift = target.mantissa - source.mantissa;
  return sign | target.infinity | target.quiet | (shift > 0 ? payload << shift : payload >> -shift);
}

// An element of any of the three types, as bits.
inline std::uint32_t element(DType dtype, const void* memory, std::size_t index) {
  const std::size_t size = kernels::element_size(dtype);
  const auto* at = static_cast<const std::byte*>(memory) + index * size;
  std::uint16_t low;
  std::uint32_t bits;
  if (size == sizeof low) {
    std::memcpy(&low, at, sizeof low);
    return low;
  }
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

}  // namespace habana_mp
