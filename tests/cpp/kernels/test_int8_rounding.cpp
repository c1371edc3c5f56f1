// How weights and activations become int8, in every variant: bit for bit the numbers that int8.h
// defines.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/cast_kernels.h"
#include "kernels/int8/int8.h"

using namespace habana_mp;
using kernels::Int8Weight;
using kernels::Variant;
using Floats = std::vector<float>;
using Bytes = std::vector<std::int8_t>;

namespace {

using Limits = std::numeric_limits<float>;
constexpr std::int8_t kCanary = 0x55;
constexpr float kFillScale = 77;

struct Rounded {
  Bytes q;
  float scale;
};

Rounded reference(const Floats& row) {
  Rounded result{Bytes(row.size(), 0), 0};
  float largest = 0;
  for (const float v : row) {
    if (!std::isfinite(v)) return {result.q, Limits::quiet_NaN()};
    largest = std::max(largest, std::abs(v));
  }
  const float scale = largest / 127;
  if (scale < Limits::min()) return result;
  result.scale = scale;
  for (std::size_t k = 0; k < row.size(); ++k) {
    const float quotient = row[k] / scale;
    result.q[k] = static_cast<std::int8_t>(std::clamp(std::nearbyint(quotient), -127.0F, 127.0F));
  }
  return result;
}

bool same(float a, float b) { return std::isnan(a) ? std::isnan(b) : a == b; }

Floats random_row(std::size_t count, unsigned seed, float size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  Floats row(count);
  for (float& v : row) v = normal(random);
  return row;
}

// By one for each kind of number that there is, in a row of `count`.
std::vector<Floats> special_rows(std::size_t count) {
  const auto with = [&](float size, float last) {
    Floats row = random_row(count, 5, size);
    if (count != 0) row.back() = last;
    return row;
  };
  const float smallest_scale = Limits::min() * 127;
  std::vector<Floats> rows = {
      Floats(count, 0),
      Floats(count, -0.0F),
      Floats(count, 3.25F),
      Floats(count, Limits::denorm_min()),
      Floats(count, -Limits::max()),
      with(1, Limits::quiet_NaN()),
      with(1, Limits::signaling_NaN()),
      with(1, Limits::infinity()),
      with(1, -Limits::infinity()),
      with(1, 1e30F),
      with(1e37F, Limits::max()),
      with(1e-39F, Limits::denorm_min()),
      with(1e-37F, smallest_scale),
      with(1e-37F, std::nextafter(smallest_scale, 0.0F)),
      with(1e-40F, smallest_scale),
      with(0, Limits::min()),
  };
  Floats halves(count);  // ties: with the scale 1
  for (std::size_t k = 0; k < count; ++k) halves[k] = static_cast<float>(k % 254) - 126.5F;
  if (count != 0) halves.back() = -127;
  rows.push_back(halves);
  return rows;
}

struct Strides {
  std::ptrdiff_t output, input;
};

// Packs rows that lie in memory by `strides`, and compares all of the result.
void check_pack(const std::vector<Floats>& rows, const Strides& strides, Variant variant,
                const std::vector<std::size_t>& splits = {}) {
  const std::size_t outputs = rows.size(), inputs = rows[0].size();
  const auto at = [&](std::size_t output, std::size_t k) {
    return static_cast<std::ptrdiff_t>(output) * strides.output +
           static_cast<std::ptrdiff_t>(k) * strides.input;
  };
  std::ptrdiff_t low = 0, high = 0;
  for (const std::size_t output : {std::size_t{0}, outputs - 1}) {
    for (const std::size_t k : {std::size_t{0}, inputs == 0 ? 0 : inputs - 1}) {
      low = std::min(low, at(output, k));
      high = std::max(high, at(output, k));
    }
  }
  Floats memory(static_cast<std::size_t>(high - low + 1), Limits::quiet_NaN());
  for (std::size_t output = 0; output < outputs; ++output) {
    for (std::size_t k = 0; k < inputs; ++k) {
      memory[static_cast<std::size_t>(at(output, k) - low)] = rows[output][k];
    }
  }
  Int8Weight weight{nullptr, nullptr, outputs, inputs};
  Bytes data(weight.size(), kCanary), expected(weight.size(), 0);
  Floats scales(weight.panels() * Int8Weight::kPanel, kFillScale);
  weight.data = data.data();
  weight.scales = scales.data();
  kernels::force(variant);
  std::size_t first = 0;
  const auto pack_to = [&](std::size_t last) {
    kernels::pack_int8(memory.data() - low, strides.output, strides.input, data.data(),
                       scales.data(), outputs, inputs, first, last);
    first = last;
  };
  for (const std::size_t split : splits) pack_to(split);
  pack_to(weight.panels());
  kernels::reset();
  std::size_t wrong_scales = 0, wrong_rows = 0;
  for (std::size_t output = 0; output < scales.size(); ++output) {
    const Rounded one = reference(output < outputs ? rows[output] : Floats());
    wrong_scales += !same(scales[output], one.scale);
    Floats row(inputs), values(inputs);
    for (std::size_t k = 0; k < one.q.size(); ++k) {
      expected[weight.place(output, k)] = one.q[k];
      values[k] = one.q[k] * one.scale;
    }
    if (output >= outputs) continue;
    kernels::dequantize_output(weight, output, row.data());
    wrong_rows += !std::equal(row.begin(), row.end(), values.begin(), same);
  }
  CHECK_MESSAGE(wrong_scales == 0, kernels::variant_name(variant) << ": " << inputs);
  CHECK_MESSAGE(wrong_rows == 0, kernels::variant_name(variant) << ": " << inputs);
  CHECK_MESSAGE(data == expected, kernels::variant_name(variant) << ": " << inputs);
}

std::vector<Floats> random_rows(std::size_t outputs, std::size_t inputs) {
  std::vector<Floats> rows;
  for (unsigned i = 0; i < outputs; ++i) rows.push_back(random_row(inputs, i + 1, 1 + i % 7));
  return rows;
}

}  // namespace

TEST_CASE("weights of any size") {
  for (const std::size_t inputs : {0, 1, 2, 3, 4, 5, 63, 127, 128, 129, 300}) {
    for (const std::size_t outputs : {1, 63, 64, 65, 130}) {
      for (const Variant variant : kernels::available()) {
        check_pack(random_rows(outputs, inputs), {static_cast<std::ptrdiff_t>(inputs), 1}, variant);
      }
    }
  }
}

TEST_CASE("weights of any strides, packed in parts") {
  for (const Strides& strides : std::vector<Strides>{{150, 1},
                                                     {160, 1},
                                                     {1, 140},
                                                     {1, 133},
                                                     {300, 2},
                                                     {3, 500},
                                                     {-150, 1},
                                                     {151, -1},
                                                     {-1, 140},
                                                     {-2, -300}}) {
    for (const Variant variant : kernels::available()) {
      check_pack(random_rows(130, 149), strides, variant);
      check_pack(random_rows(130, 149), strides, variant, {1, 1, 2});
    }
  }
  // The same row, or the same number, many times
  for (const Variant variant : kernels::available()) {
    check_pack(std::vector<Floats>(66, random_row(130, 1)), {0, 1}, variant);
    check_pack(std::vector<Floats>(66, Floats(5, 2.5F)), {0, 0}, variant);
  }
}

TEST_CASE("weights with zeros, NaNs, infinities, subnormals and the largest numbers") {
  for (const std::size_t inputs : {0, 1, 7, 130}) {
    for (const Variant variant : kernels::available()) {
      check_pack(special_rows(inputs), {static_cast<std::ptrdiff_t>(inputs), 1}, variant);
      check_pack(special_rows(inputs), {1, 17}, variant);
    }
  }
}

TEST_CASE("a scale that is NaN makes all of a dequantized output NaN") {
  const Bytes data(Int8Weight::kPanel * 4, 3);
  Floats scales(Int8Weight::kPanel, 0.5F), row(3);
  scales[1] = Limits::quiet_NaN();
  const Int8Weight weight{data.data(), scales.data(), 2, 3};
  kernels::dequantize_output(weight, 0, row.data());
  CHECK(row == Floats(3, 1.5F));
  kernels::dequantize_output(weight, 1, row.data());
  CHECK(std::all_of(row.begin(), row.end(), [](float v) { return std::isnan(v); }));
}

// Between the rows of an input, and of what is written
constexpr std::size_t kGap = 3;

// quantize_rows() of these rows in every variant.
void check_rounding(const std::vector<Floats>& rows, std::size_t inputs, DType from, DType via) {
  const std::size_t filled = Int8Weight{nullptr, nullptr, 0, inputs}.filled_inputs();
  const std::size_t size = kernels::element_size(from), stride = inputs + kGap;
  std::vector<std::byte> x(rows.size() * stride * size, std::byte{0xff});
  std::vector<Rounded> expected;
  kernels::force(Variant::Scalar);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::byte* at = x.data() + row * stride * size;
    Floats numbers = rows[row];
    if (from == DType::Float32) {
      std::copy_n(reinterpret_cast<const std::byte*>(numbers.data()), inputs * size, at);
    } else {
      kernels::kernel(DType::Float32, from)(numbers.data(), at, inputs);
      kernels::kernel(from, DType::Float32)(at, numbers.data(), inputs);
    }
    if (via != DType::Float32) {
      std::vector<std::uint16_t> low(inputs);
      kernels::kernel(DType::Float32, via)(numbers.data(), low.data(), inputs);
      kernels::kernel(via, DType::Float32)(low.data(), numbers.data(), inputs);
    }
    expected.push_back(reference(numbers));
  }
  for (const Variant variant : kernels::available()) {
    for (const bool backwards : {false, true}) {
      Bytes q(rows.size() * (filled + kGap), kCanary);
      Floats scales(rows.size(), kFillScale);
      const auto row_stride = static_cast<std::ptrdiff_t>(stride) * (backwards ? -1 : 1);
      kernels::force(variant);
      kernels::quantize_rows(
          from, via, x.data() + (backwards ? rows.size() - 1 : 0) * stride * size, row_stride,
          rows.size(), inputs, q.data(), filled + kGap, scales.data());
      kernels::reset();
      std::size_t wrong = 0;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        const Rounded& one = expected[backwards ? rows.size() - 1 - row : row];
        Bytes line = one.q;
        line.resize(filled, 0);
        line.resize(filled + kGap, kCanary);
        wrong += !same(scales[row], one.scale);
        wrong += !std::equal(line.begin(), line.end(),
                             q.begin() + static_cast<std::ptrdiff_t>(row * line.size()));
      }
      CHECK_MESSAGE(wrong == 0, kernels::variant_name(variant)
                                    << ": " << dtype_name(from) << " via " << dtype_name(via)
                                    << " by " << inputs);
    }
  }
}

TEST_CASE("activations of each dtype") {
  for (const std::size_t inputs : {0, 1, 2, 3, 4, 5, 127, 128, 129, 300}) {
    auto rows = special_rows(inputs);
    for (unsigned i = 0; i < 5; ++i) rows.push_back(random_row(inputs, i, 1e-3F));
    for (const DType from : {DType::Float32, DType::BFloat16, DType::Float16}) {
      for (const DType via : {DType::Float32, DType::BFloat16, DType::Float16})
        check_rounding(rows, inputs, from, via);
    }
  }
}

TEST_CASE("activations of other dtypes are refused") {
  const double x = 1;
  std::int8_t q[4];
  float scale;
  for (const DType from : {DType::Other, DType::Float8, DType::Float64}) {
    for (const auto& [of, via] : {std::pair{from, DType::BFloat16}, {DType::BFloat16, from}})
      CHECK_THROWS_AS(kernels::quantize_rows(of, via, &x, 1, 1, 1, q, 4, &scale),
                      std::invalid_argument);
  }
}
