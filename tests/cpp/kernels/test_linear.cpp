// The linear layer over a packed weight, in every variant: within rounding of float64, and bit for
// bit what linear.h says of the order of its sums.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cast_kernels.h"
#include "kernels/linear/linear.h"

using namespace habana_mp;
using kernels::Order;
using kernels::PackedWeight;
using kernels::Variant;
using Low = std::uint16_t;
using Lows = std::vector<Low>;

namespace {

constexpr Low kNan = 0x7fc0, kInfinity = 0x7f80, kCanary = 0xa5a5;

float float_of(Low low) {
  const std::uint32_t bits = std::uint32_t{low} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

Low rounded(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return static_cast<Low>((bits | 0x00400000) >> 16);
  return static_cast<Low>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

Lows random_lows(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Lows lows(count);
  for (Low& low : lows) low = rounded(normal(random));
  return lows;
}

// Rows of x and of out lie apart and in any direction, and what lies between them is no number.
struct Case {
  std::size_t rows, inputs, outputs;
  bool has_bias = true;
  std::ptrdiff_t x_gap = 0, out_gap = 0;
  bool backwards = false;
  std::size_t sum = 0;  // 0: as oneDNN
  Order order = Order::Pairs;
};

struct Layer {
  Case what;
  Lows weight, packed, bias, x;
  std::ptrdiff_t x_row_stride, out_row_stride;

  explicit Layer(const Case& one, unsigned seed = 7)
      : what(one),
        weight(random_lows(one.outputs * one.inputs, seed)),
        bias(random_lows(one.outputs, seed + 1)),
        x_row_stride(static_cast<std::ptrdiff_t>(one.inputs) + one.x_gap),
        out_row_stride(static_cast<std::ptrdiff_t>(one.outputs) + one.out_gap) {
    if (what.sum == 0) what.sum = kernels::inputs_of_sum(what.rows, what.inputs);
    const Lows numbers = random_lows(one.rows * one.inputs, seed + 2);
    x.assign(spread(x_row_stride, one.inputs), kNan);
    for (std::size_t row = 0; row < one.rows; ++row) {
      std::copy_n(numbers.data() + row * one.inputs, one.inputs,
                  x.data() + start(row, x_row_stride));
    }
    pack();
  }

  void pack() {
    packed.assign(view().size(), 0);
    for (std::size_t output = 0; output < what.outputs; ++output) {
      for (std::size_t k = 0; k < what.inputs; ++k) {
        packed[view().place(output, k)] = weight[output * what.inputs + k];
      }
    }
  }

  PackedWeight view() const { return {packed.data(), what.outputs, what.inputs}; }

  // No element more than the rows have
  std::size_t spread(std::ptrdiff_t stride, std::size_t row) const {
    return what.rows == 0 ? 0 : (what.rows - 1) * static_cast<std::size_t>(stride) + row;
  }
  std::size_t start(std::size_t row, std::ptrdiff_t stride) const {
    return (what.backwards ? what.rows - 1 - row : row) * static_cast<std::size_t>(stride);
  }
  Low x_at(std::size_t row, std::size_t k) const { return x[start(row, x_row_stride) + k]; }
  Low weight_at(std::size_t output, std::size_t k) const {
    return weight[output * what.inputs + k];
  }

  // Rows by outputs, without the gaps; panels are split before each of `splits`.
  Lows run(Variant variant, const std::vector<std::size_t>& splits = {}) const {
    Lows out(spread(out_row_stride, what.outputs), kCanary);
    kernels::force(variant);
    const std::size_t first_row = what.rows == 0 ? 0 : start(0, 1);
    const std::ptrdiff_t sign = what.backwards ? -1 : 1;
    kernels::LinearTask task{
        .x = x.data() + static_cast<std::ptrdiff_t>(first_row) * x_row_stride,
        .x_row_stride = sign * x_row_stride,
        .rows = what.rows,
        .weight = view(),
        .bias = what.has_bias ? bias.data() : nullptr,
        .out = out.data() + static_cast<std::ptrdiff_t>(first_row) * out_row_stride,
        .out_row_stride = sign * out_row_stride,
        .first_panel = 0,
        .last_panel = 0,
        .sum = what.sum,
        .order = what.order};
    for (const std::size_t split : splits) {
      task.last_panel = split;
      kernels::linear(task);
      task.first_panel = split;
    }
    task.last_panel = view().panels();
    kernels::linear(task);
    kernels::reset();
    Lows result;
    for (std::size_t row = 0; row < what.rows; ++row) {
      const auto at = out.begin() + static_cast<std::ptrdiff_t>(start(row, out_row_stride));
      result.insert(result.end(), at, at + static_cast<std::ptrdiff_t>(what.outputs));
      std::fill_n(at, what.outputs, kCanary);
    }
    CHECK(std::all_of(out.begin(), out.end(), [](Low low) { return low == kCanary; }));
    return result;
  }

  // In the order of linear.h
  float sum_of(std::size_t row, std::size_t output) const {
    const float total = what.order == Order::Pairs   ? sum_of_pairs(row, output)
                        : what.order == Order::Turns ? sum_of_turns(row, output)
                                                     : sum_in_order(row, output);
    return what.has_bias ? total + float_of(bias[output]) : total;
  }

  float plus(float sum, std::size_t row, std::size_t output, std::size_t k) const {
    if (k >= what.inputs) return sum;
    return std::fma(float_of(x_at(row, k)), float_of(weight_at(output, k)), sum);
  }

  float sum_in_order(std::size_t row, std::size_t output) const {
    float sum = 0;
    for (std::size_t k = 0; k < what.inputs; ++k) sum = plus(sum, row, output, k);
    return sum;
  }

  float sum_of_turns(std::size_t row, std::size_t output) const {
    float sum[16] = {};
    for (std::size_t k = 0; k < what.inputs; k += 2) {
      float& turn = sum[k / 2 % 16];
      turn = plus(plus(turn, row, output, k + 1), row, output, k);
    }
    for (std::size_t i = 0; i < 8; ++i) sum[i] += sum[i + 8];
    for (std::size_t i = 0; i < 4; ++i) sum[i] += sum[i + 4];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  float sum_of_pairs(std::size_t row, std::size_t output) const {
    float total = 0;
    for (std::size_t start = 0; start < what.inputs; start += what.sum) {
      float sum = 0;
      const std::size_t end = std::min(what.inputs, start + what.sum);
      for (std::size_t k = start; k < end; k += 2) {
        sum = plus(plus(sum, row, output, k + 1), row, output, k);
      }
      total = start == 0 ? sum : sum + total;
    }
    return total;
  }

  struct Exact {
    double value, magnitude;  // of the sum of absolute products
  };
  Exact exact(std::size_t row, std::size_t output) const {
    double sum = what.has_bias ? float_of(bias[output]) : 0, magnitude = std::abs(sum);
    for (std::size_t k = 0; k < what.inputs; ++k) {
      const double product = static_cast<double>(float_of(x_at(row, k))) *
                             static_cast<double>(float_of(weight_at(output, k)));
      sum += product;
      magnitude += std::abs(product);
    }
    return {sum, magnitude};
  }
};

void check(const Case& one) {
  const Layer layer(one);
  Lows expected;
  double worst = 0;  // error, in parts of what rounding allows
  for (std::size_t row = 0; row < one.rows; ++row) {
    for (std::size_t output = 0; output < one.outputs; ++output) {
      expected.push_back(rounded(layer.sum_of(row, output)));
      const Layer::Exact exact = layer.exact(row, output);
      const double of_sums = std::ldexp(static_cast<double>(one.inputs + 2), -24) * exact.magnitude;
      const double allowed = std::ldexp(std::abs(exact.value) + of_sums, -8) + of_sums;
      const double error = std::abs(float_of(expected.back()) - exact.value);
      worst = std::max(worst, error / std::max(allowed, 1e-300));
    }
  }
  CHECK(worst <= 1);
  for (const Variant variant : kernels::available()) {
    CHECK_MESSAGE(layer.run(variant) == expected,
                  kernels::variant_name(variant)
                      << ": " << one.rows << " x " << one.inputs << " -> " << one.outputs
                      << ", gaps " << one.x_gap << " " << one.out_gap << ", sum " << one.sum);
  }
}

}  // namespace

TEST_CASE("any number of rows") {
  for (std::size_t rows = 0; rows <= 34; ++rows) check({rows, 131, 70});
  check({70, 40, 64});
}

TEST_CASE("any number of inputs and outputs") {
  for (const std::size_t inputs : {0, 1, 2, 3, 31, 32, 33, 127, 128, 129, 130, 257}) {
    for (const std::size_t outputs : {1, 16, 63, 64, 65, 130}) {
      check({1, inputs, outputs});
      check({5, inputs, outputs, false});
      check({7, inputs, outputs});
      check({25, inputs, outputs, false});
    }
  }
}

TEST_CASE("sums begin again where those of oneDNN do") {
  for (const std::size_t inputs : {511, 512, 513, 514, 1023, 1024, 1025, 1026, 1537, 2048, 2051}) {
    for (const std::size_t rows : {1, 2, 7, 13}) check({rows, inputs, 66});
  }
  CHECK(kernels::inputs_of_sum(1, 4096) == 512);
  CHECK(kernels::inputs_of_sum(2, 1024) == 512);
  CHECK(kernels::inputs_of_sum(2, 1025) == 1024);
  CHECK(kernels::splits_inputs(1, {nullptr, 128, 4096}, 3));
  CHECK(!kernels::splits_inputs(1, {nullptr, 128, 4096}, 2));
  CHECK(!kernels::splits_inputs(2, {nullptr, 128, 4096}, 3));
  CHECK(!kernels::splits_inputs(1, {nullptr, 128, 4098}, 3));
  CHECK(!kernels::splits_inputs(1, {nullptr, 128, 1024}, 3));
}

TEST_CASE("one row in the orders of torch 2.15") {
  CHECK(kernels::splits_in_order({nullptr, 2048, 11008}, 64));
  CHECK(!kernels::splits_in_order({nullptr, 2048, 11008}, 63));
  CHECK(!kernels::splits_in_order({nullptr, 2049, 11008}, 128));
  CHECK(!kernels::splits_in_order({nullptr, 32, 11008}, 1));
  for (const Order order : {Order::Turns, Order::InOrder}) {
    for (const std::size_t inputs :
         {0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 159, 256, 1021}) {
      for (const std::size_t outputs : {1, 16, 63, 64, 65, 130}) {
        check({.rows = 1, .inputs = inputs, .outputs = outputs, .order = order});
        check({.rows = 1, .inputs = inputs, .outputs = outputs, .has_bias = false, .order = order});
      }
    }
    check({.rows = 3, .inputs = 67, .outputs = 100, .x_gap = 5, .out_gap = 3, .order = order});
    check({.rows = 2, .inputs = 67, .outputs = 100, .backwards = true, .order = order});
    const Layer layer({.rows = 1, .inputs = 333, .outputs = 64 * 5 - 7, .order = order});
    for (const Variant variant : kernels::available()) {
      CHECK(layer.run(variant, {1, 3}) == layer.run(variant));
    }
  }
}

TEST_CASE("the order in which k is added keeps subnormals, but for results") {
  constexpr Low kSubnormal = 0x0040;
  Layer layer({.rows = 1, .inputs = 2, .outputs = 1, .has_bias = false, .order = Order::InOrder});
  layer.x = {kSubnormal, kSubnormal};
  layer.weight = {rounded(2), rounded(2)};
  layer.pack();
  Layer small(layer);
  small.weight = {rounded(0.5F), rounded(0.25F)};
  small.pack();
  for (const Variant variant : kernels::available()) {
    CHECK(layer.run(variant) == Lows{0x0100});
    CHECK(small.run(variant) ==
          Lows{static_cast<Low>(variant == Variant::Avx512Bf16 ? 0 : 0x0030)});
  }
}

TEST_CASE("sums of any even number of inputs") {
  for (const std::size_t sum : {2, 6, 100, 128, 130, 300, 10000}) {
    check({.rows = 3, .inputs = 301, .outputs = 64, .sum = sum});
    check({.rows = 8, .inputs = 301, .outputs = 64, .sum = sum});
  }
}

TEST_CASE("rows apart, from the last to the first") {
  for (const std::size_t rows : {1, 4, 9, 17}) {
    check({.rows = rows, .inputs = 67, .outputs = 100, .x_gap = 5, .out_gap = 3});
    check({.rows = rows, .inputs = 67, .outputs = 100, .x_gap = 1, .backwards = true});
    check({.rows = rows, .inputs = 64, .outputs = 128, .out_gap = 1, .backwards = true});
  }
}

TEST_CASE("bits depend neither on the split of the panels nor on the other rows") {
  const Layer layer({.rows = 19, .inputs = 333, .outputs = 64 * 5 - 7, .sum = 128});
  for (const Variant variant : kernels::available()) {
    const Lows whole = layer.run(variant);
    for (const auto& splits : std::vector<std::vector<std::size_t>>{{1}, {3}, {2, 2, 4}, {0, 5}}) {
      CHECK(layer.run(variant, splits) == whole);
    }
    Layer few(layer);
    for (std::size_t rows = 1; rows < 19; ++rows) {
      few.what.rows = rows;
      const Lows out = few.run(variant);
      CHECK(std::equal(out.begin(), out.end(), whole.begin()));
    }
  }
}

TEST_CASE("infinities and NaNs reach their outputs and no others") {
  constexpr std::size_t kRows = 9, kInputs = 71, kOutputs = 70;
  Layer layer({kRows, kInputs, kOutputs});
  layer.x[2 * kInputs + 70] = kInfinity;
  layer.x[3 * kInputs + 1] = kNan;
  layer.x[4 * kInputs] = 0x7f81;  // signals
  layer.weight[69 * kInputs + 70] = kInfinity;
  layer.weight[5 * kInputs + 70] = 0;
  layer.bias[7] = kNan;
  layer.pack();
  for (const Variant variant : kernels::available()) {
    const Lows out = layer.run(variant);
    std::size_t wrong = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t output = 0; output < kOutputs; ++output) {
        const float expected = layer.sum_of(row, output);
        const Low found = out[row * kOutputs + output];
        const bool is_quiet = (found & kNan) == kNan;
        wrong += std::isnan(expected) ? !is_quiet : found != rounded(expected);
      }
    }
    CHECK_MESSAGE(wrong == 0, kernels::variant_name(variant));
  }
}

TEST_CASE("overflow is infinite, a product alone is not") {
  Layer layer({.rows = 2, .inputs = 2, .outputs = 1, .has_bias = false});
  const Low largest = rounded(std::ldexp(1.0F, 127)), two = rounded(2), minus_two = rounded(-2);
  layer.x = {largest, largest, largest, largest};
  layer.weight = {two, two};
  layer.pack();
  Layer back(layer);
  back.weight = {minus_two, rounded(1)};  // fused: the odd product, then less twice as much
  back.pack();
  for (const Variant variant : kernels::available()) {
    CHECK(layer.run(variant) == Lows{kInfinity, kInfinity});
    CHECK(back.run(variant) ==
          Lows{rounded(-std::ldexp(1.0F, 127)), rounded(-std::ldexp(1.0F, 127))});
  }
}

TEST_CASE("subnormals are zeros where the instruction says so") {
  constexpr Low kSubnormal = 0x0040, kSmallest = 0x0080;  // the smallest that is normal
  const Low one = rounded(1), half = rounded(0.5F);
  Layer layer({.rows = 1, .inputs = 1, .outputs = 2, .has_bias = false});
  const auto run = [&](Variant variant, Low x, Low weight) {
    layer.x = {x};
    layer.weight = {weight, weight};
    layer.pack();
    return layer.run(variant);
  };
  for (const Variant variant : kernels::available()) {
    const Low small = variant == Variant::Avx512Bf16 ? 0 : kSubnormal;
    CHECK(run(variant, kSubnormal, one) == Lows{small, small});
    CHECK(run(variant, one, kSubnormal) == Lows{small, small});
    CHECK(run(variant, kSmallest, half) == Lows{small, small});
    CHECK(run(variant, kSmallest, one) == Lows{kSmallest, kSmallest});
  }
}

TEST_CASE("pointers aligned to nothing but an element") {
  const Layer layer({11, 95, 130});
  for (const Variant variant : kernels::available()) {
    const Lows expected = layer.run(variant);
    for (const std::size_t offset : {1, 3, 17}) {
      Lows x(offset, kNan), weight(offset, kNan), bias(offset, kNan);
      x.insert(x.end(), layer.x.begin(), layer.x.end());
      weight.insert(weight.end(), layer.packed.begin(), layer.packed.end());
      bias.insert(bias.end(), layer.bias.begin(), layer.bias.end());
      Lows out(offset + expected.size(), kCanary);
      kernels::force(variant);
      kernels::linear({x.data() + offset,
                       95,
                       11,
                       {weight.data() + offset, 130, 95},
                       bias.data() + offset,
                       out.data() + offset,
                       130,
                       0,
                       3,
                       512});
      kernels::reset();
      CHECK(std::equal(expected.begin(), expected.end(),
                       out.begin() + static_cast<std::ptrdiff_t>(offset)));
    }
  }
}
