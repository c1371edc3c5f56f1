// Products with int8 weights, in every variant: bit for bit the numbers that int8.h defines.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/cast_kernels.h"
#include "kernels/int8/int8.h"

using namespace habana_mp;
using kernels::Int8Weight;
using kernels::Variant;
using Bits = std::vector<std::uint32_t>;
using Floats = std::vector<float>;
using Bytes = std::vector<std::int8_t>;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
constexpr std::uint8_t kCanary = 0xa5;
constexpr DType kResults[] = {DType::BFloat16, DType::Float16, DType::Float32};

enum class Product { WeightInt8, OfBFloat16, Int8 };  // by x; by x rounded to bfloat16; by x_q
constexpr Product kProducts[] = {Product::WeightInt8, Product::OfBFloat16, Product::Int8};
constexpr const char* kNames[] = {"weight_int8", "weight_int8 by bfloat16", "int8"};

// Rows of x and of out lie apart, and those of out in any direction.
struct Case {
  std::size_t rows, inputs, outputs;
  DType to = DType::Float32;
  bool has_bias = true;
  std::size_t x_gap = 0, out_gap = 0;
  bool backwards = false;
};

// The result's numbers as bits, all NaNs as one: a NaN has to be quiet.
std::uint32_t bits_of(DType dtype, const std::uint8_t* at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, kernels::element_size(dtype));
  const std::uint32_t infinity = dtype == DType::Float32    ? 0x7f800000
                                 : dtype == DType::BFloat16 ? 0x7f80
                                                            : 0x7c00;
  const std::uint32_t sign = dtype == DType::Float32 ? 0x80000000 : 0x8000;
  const std::uint32_t quiet = infinity | (sign - infinity) >> 1;
  if ((bits & ~sign) <= infinity) return bits;
  return (bits & quiet) == quiet ? quiet : 1;
}

std::uint32_t rounded(DType to, float value) {
  std::uint8_t low[4];
  std::memcpy(low, &value, sizeof low);
  if (to != DType::Float32) {
    kernels::force(Variant::Scalar);
    kernels::kernel(DType::Float32, to)(&value, low, 1);
  }
  return bits_of(to, low);
}

std::vector<std::uint16_t> low_of(const Floats& numbers) {
  std::vector<std::uint16_t> low(numbers.size());
  kernels::kernel(DType::Float32, DType::BFloat16)(numbers.data(), low.data(), low.size());
  return low;
}

Floats wide_of(const std::vector<std::uint16_t>& low) {
  Floats numbers(low.size());
  kernels::kernel(DType::BFloat16, DType::Float32)(low.data(), numbers.data(), low.size());
  return numbers;
}

struct Layer {
  Case what;
  Floats x, scales, x_scales, bias;  // x: for weight_int8
  Bytes q, packed, x_q;              // q: outputs by inputs
  std::size_t x_row_stride, x_q_row_stride, out_row_stride;

  explicit Layer(const Case& one, unsigned seed = 7)
      : what(one),
        x_row_stride(one.inputs + one.x_gap),
        x_q_row_stride(Int8Weight{nullptr, nullptr, 0, one.inputs}.filled_inputs() + one.x_gap),
        out_row_stride(one.outputs + one.out_gap) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto floats = [&](std::size_t count) {
      Floats numbers(count);
      for (float& number : numbers) number = normal(random);
      return numbers;
    };
    const auto positive = [&](std::size_t count) {
      Floats numbers = floats(count);
      for (float& number : numbers) number = std::abs(number);
      return numbers;
    };
    const auto bytes = [&](std::size_t count) {
      Bytes numbers(count);
      for (auto& number : numbers) number = static_cast<std::int8_t>(random() % 255) - 127;
      return numbers;
    };
    // No element more than the rows have
    const std::size_t gaps = one.rows == 0 ? 0 : one.rows - 1;
    x = floats(gaps * x_row_stride + (one.rows == 0 ? 0 : one.inputs));
    x_q = bytes(gaps * x_q_row_stride + (one.rows == 0 ? 0 : x_q_row_stride - one.x_gap));
    for (std::size_t row = 0; row < one.rows; ++row) {
      for (std::size_t k = one.inputs; k < x_q_row_stride - one.x_gap; ++k) {
        x_q[row * x_q_row_stride + k] = 0;
      }
    }
    x_scales = positive(one.rows);
    bias = floats(one.outputs);
    q = bytes(one.outputs * one.inputs);
    scales = positive(one.outputs);
    scales.resize(view().panels() * Int8Weight::kPanel, 0);
    pack();
  }

  void pack() {
    packed.assign(view().size(), 0);
    for (std::size_t output = 0; output < what.outputs; ++output) {
      for (std::size_t k = 0; k < what.inputs; ++k) {
        packed[view().place(output, k)] = q[output * what.inputs + k];
      }
    }
  }

  Int8Weight view() const { return {packed.data(), scales.data(), what.outputs, what.inputs}; }

  // Those that have the product.
  std::vector<Variant> variants(Product product) const {
    std::vector<Variant> found;
    const std::vector<std::uint16_t> low = low_of(x);
    for (const Variant variant : kernels::available()) {
      kernels::force(variant);
      if (product != Product::OfBFloat16 || kernels::multiplies_bfloat16(low.data(), low.size()))
        found.push_back(variant);
    }
    kernels::reset();
    return found;
  }

  // Rows by outputs, without the gaps; panels are split before each of `splits`.
  Bits run(Product product, Variant variant, std::vector<std::size_t> splits = {}) const {
    const std::size_t size = kernels::element_size(what.to);
    const std::size_t spread = what.rows == 0 ? 0 : (what.rows - 1) * out_row_stride + what.outputs;
    std::vector<std::uint8_t> out(spread * size, kCanary);
    const auto start = [&](std::size_t row) {
      return (what.backwards ? what.rows - 1 - row : row) * out_row_stride * size;
    };
    const auto stride = static_cast<std::ptrdiff_t>(out_row_stride) * (what.backwards ? -1 : 1);
    void* first_out = out.data() + (what.rows == 0 ? 0 : start(0));
    const float* its_bias = what.has_bias ? bias.data() : nullptr;
    const std::vector<std::uint16_t> low = low_of(x);
    kernels::force(variant);
    splits.push_back(view().panels());
    for (std::size_t first = 0; const std::size_t last : splits) {
      if (product == Product::WeightInt8) {
        kernels::int8_product({x.data(), static_cast<std::ptrdiff_t>(x_row_stride), what.rows,
                               view(), its_bias, what.to, first_out, stride, first, last});
      } else if (product == Product::OfBFloat16) {
        kernels::int8_product({low.data(), static_cast<std::ptrdiff_t>(x_row_stride), what.rows,
                               view(), its_bias, what.to, first_out, stride, first, last});
      } else {
        kernels::int8_product({x_q.data(), static_cast<std::ptrdiff_t>(x_q_row_stride), what.rows,
                               view(), its_bias, what.to, first_out, stride, first, last,
                               x_scales.data()});
      }
      first = last;
    }
    kernels::reset();
    Bits result;
    for (std::size_t row = 0; row < what.rows; ++row) {
      for (std::size_t output = 0; output < what.outputs; ++output) {
        std::uint8_t* at = out.data() + start(row) + output * size;
        result.push_back(bits_of(what.to, at));
        std::fill_n(at, size, kCanary);
      }
    }
    CHECK(std::all_of(out.begin(), out.end(), [](std::uint8_t one) { return one == kCanary; }));
    return result;
  }

  // Of each two inputs the second one comes first.
  float weight_int8_sum(const Floats& numbers, std::size_t row, std::size_t output) const {
    float total = 0;
    for (std::size_t start = 0; start < what.inputs; start += 512) {
      float sum = 0;
      const std::size_t end = std::min(what.inputs, start + 512);
      for (std::size_t pair = start; pair < end; pair += 2) {
        for (const std::size_t k : {pair + 1, pair}) {
          if (k == end) continue;
          sum = std::fma(numbers[row * x_row_stride + k], q[output * what.inputs + k], sum);
        }
      }
      total += sum;
    }
    return total;
  }

  float int8_sum(std::size_t row, std::size_t output) const {
    std::int64_t sum = 0;
    for (std::size_t k = 0; k < what.inputs; ++k) {
      sum += x_q[row * x_q_row_stride + k] * q[output * what.inputs + k];
    }
    return static_cast<float>(sum);
  }

  Bits expected(Product product) const {
    Bits result;
    const Floats numbers = product == Product::OfBFloat16 ? wide_of(low_of(x)) : x;
    for (std::size_t row = 0; row < what.rows; ++row) {
      for (std::size_t output = 0; output < what.outputs; ++output) {
        volatile float y = product == Product::Int8 ? int8_sum(row, output)
                                                    : weight_int8_sum(numbers, row, output);
        if (product == Product::Int8) y = y * x_scales[row];
        y = y * scales[output];
        if (what.has_bias) y = y + bias[output];
        result.push_back(rounded(what.to, y));
      }
    }
    kernels::reset();
    return result;
  }
};

void check(const Layer& layer) {
  for (const Product product : kProducts) {
    const Bits expected = layer.expected(product);
    for (const Variant variant : layer.variants(product)) {
      CHECK_MESSAGE(layer.run(product, variant) == expected,
                    kernels::variant_name(variant)
                        << ", " << kNames[static_cast<int>(product)] << ": " << layer.what.rows
                        << " x " << layer.what.inputs << " -> " << layer.what.outputs << ", "
                        << dtype_name(layer.what.to));
    }
  }
}

void check(const Case& one) { check(Layer(one)); }

}  // namespace

TEST_CASE("any number of rows") {
  for (std::size_t rows = 0; rows <= 34; ++rows) check({rows, 131, 70, kResults[rows % 3]});
  check({70, 40, 64});
}

TEST_CASE("any number of inputs and outputs") {
  for (const std::size_t inputs : {0, 1, 2, 3, 4, 5, 63, 64, 65, 67, 255, 256, 257, 261}) {
    for (const std::size_t outputs : {0, 1, 16, 63, 64, 65, 130}) {
      check({1, inputs, outputs, DType::BFloat16, false});
      check({3, inputs, outputs, DType::Float16});
      check({9, inputs, outputs});
    }
  }
}

TEST_CASE("float32 sums begin again") {
  for (const std::size_t inputs : {511, 512, 513, 514, 1023, 1024, 1025, 1537}) {
    for (const std::size_t rows : {1, 2, 4, 7, 13}) check({rows, inputs, 66});
  }
}

TEST_CASE("sums of int8 are exact, however many there are") {
  for (const std::size_t inputs : {65535, 65536, 65537, 70000, 131073}) {
    Layer layer({.rows = 2, .inputs = inputs, .outputs = 5, .has_bias = false});
    check(layer);
    // The largest sums, and one less: both rounded once
    std::fill(layer.q.begin(), layer.q.end(), std::int8_t{127});
    std::fill_n(layer.x_q.begin(), inputs, std::int8_t{127});
    std::fill_n(layer.x_q.begin() + static_cast<std::ptrdiff_t>(layer.x_q_row_stride), inputs,
                std::int8_t{-127});
    std::fill_n(layer.q.begin(), inputs, std::int8_t{-127});
    layer.q[inputs - 1] = 126;
    layer.pack();
    check(layer);
  }
}

TEST_CASE("the largest numbers of int8 together, and against each other") {
  for (const std::size_t rows : {1, 5}) {
    Layer layer({.rows = rows, .inputs = 132, .outputs = 65});
    for (const std::int8_t x : {127, -127}) {
      for (const std::int8_t weight : {127, -127}) {
        std::fill(layer.x_q.begin(), layer.x_q.end(), x);
        std::fill(layer.q.begin(), layer.q.end(), weight);
        layer.pack();
        check(layer);
      }
    }
  }
}

TEST_CASE("rows apart, and from the last to the first") {
  for (const std::size_t rows : {1, 4, 9, 17}) {
    for (const DType to : kResults) {
      check({.rows = rows, .inputs = 67, .outputs = 100, .to = to, .x_gap = 5, .out_gap = 3});
      check({.rows = rows, .inputs = 64, .outputs = 128, .to = to, .x_gap = 1, .backwards = true});
    }
  }
}

TEST_CASE("x may be read from the last row to the first, or the same row each time") {
  const Layer layer({.rows = 9, .inputs = 70, .outputs = 65});
  for (const Variant variant : kernels::available()) {
    const Bits forwards = layer.run(Product::WeightInt8, variant);
    for (const std::ptrdiff_t stride : {-70, 0}) {
      Floats out(9 * 65);
      kernels::force(variant);
      kernels::int8_product({layer.x.data() + 8 * 70, stride, 9, layer.view(), layer.bias.data(),
                             DType::Float32, out.data(), 65, 0, 2});
      kernels::reset();
      for (std::size_t row = 0; row < 9; ++row) {
        const std::size_t same = stride == 0 ? 8 : 8 - row;
        CHECK(std::memcmp(out.data() + row * 65, forwards.data() + same * 65, 65 * 4) == 0);
      }
    }
  }
}

TEST_CASE("rows of int8 anywhere, in parts") {
  const struct {
    std::size_t rows, inputs, part;
  } kCases[] = {{1, 46, 16}, {5, 64, 64}, {37, 48, 4}, {131, 900, 300}, {3, 66000, 33000}};
  for (const auto& [rows, inputs, part] : kCases) {
    const Layer layer({.rows = rows, .inputs = inputs, .outputs = 70});
    const std::size_t filled = layer.view().filled_inputs(), parts = (filled + part - 1) / part;
    // The first parts of all rows, from the last row to the first, then all second parts ...
    const std::size_t gap = part + 3, apart = rows * gap + 5;
    Bytes x(parts * apart);
    std::vector<std::ptrdiff_t> places, parts_from;
    for (std::size_t row = 0; row < rows; ++row) {
      places.push_back(static_cast<std::ptrdiff_t>((rows - 1 - row) * gap));
      for (std::size_t k = 0; k < filled; ++k) {
        x[static_cast<std::size_t>(places.back()) + k / part * apart + k % part] =
            layer.x_q[row * layer.x_q_row_stride + k];
      }
    }
    for (std::size_t i = 0; i < parts; ++i)
      parts_from.push_back(static_cast<std::ptrdiff_t>(i * apart));
    const Bits expected = layer.expected(Product::Int8);
    for (const Variant variant : kernels::available()) {
      Floats out(rows * 70);
      kernels::force(variant);
      kernels::int8_product(kernels::Int8Task<std::int8_t>{.x = x.data(),
                                                           .x_row_stride = 0,
                                                           .rows = rows,
                                                           .weight = layer.view(),
                                                           .bias = layer.bias.data(),
                                                           .to = DType::Float32,
                                                           .out = out.data(),
                                                           .out_row_stride = 70,
                                                           .first_panel = 0,
                                                           .last_panel = 2,
                                                           .x_scales = layer.x_scales.data(),
                                                           .x_rows = places.data(),
                                                           .x_parts = parts_from.data(),
                                                           .x_part = part});
      kernels::reset();
      CHECK_MESSAGE(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0,
                    kernels::variant_name(variant) << ": " << rows << " x " << inputs);
    }
  }
}

TEST_CASE("bits depend neither on the split of the panels nor on the other rows") {
  const Layer layer({.rows = 37, .inputs = 600, .outputs = 64 * 5 - 7});
  for (const Product product : kProducts) {
    for (const Variant variant : layer.variants(product)) {
      const Bits whole = layer.run(product, variant);
      for (const auto& splits : std::vector<std::vector<std::size_t>>{{1}, {2, 2, 4}, {0, 5}}) {
        CHECK(layer.run(product, variant, splits) == whole);
      }
      Layer few(layer);
      for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 32, 33}) {
        few.what.rows = rows;
        const Bits out = few.run(product, variant);
        CHECK(std::equal(out.begin(), out.end(), whole.begin()));
      }
    }
  }
}

TEST_CASE("infinities, NaNs, zeros and the ends of the range reach their outputs and no others") {
  constexpr std::size_t kInputs = 71, kOutputs = 70;
  for (const std::size_t rows : {9, 4}) {
    for (const DType to : kResults) {
      Layer layer({rows, kInputs, kOutputs, to});
      layer.x[0 * kInputs + 70] = kInfinity;
      layer.x[1 * kInputs + 1] = kNan;
      for (std::size_t k = 0; k < kInputs; ++k) {
        layer.x[2 * kInputs + k] = k % 2 == 0 ? kLargest : -kLargest;
        layer.x[3 * kInputs + k] = k % 3 == 0 ? kSmallest : -3 * kSmallest;
      }
      layer.q[5 * kInputs + 70] = 0;  // by infinity
      layer.x_scales[0] = kNan;
      layer.x_scales[1] = 0;
      layer.x_scales[2] = kLargest;
      layer.x_scales[3] = kSmallest;
      const float ends[] = {kNan, 0, kInfinity, -kInfinity, kLargest, kSmallest, 1e30F, 1e-42F};
      for (std::size_t i = 0; i < std::size(ends); ++i) {
        layer.scales[3 + i] = ends[i];
        layer.bias[40 + i] = ends[i];
        layer.bias[3 + i] = i % 2 == 0 ? 0 : 1;
      }
      layer.pack();
      check(layer);
    }
  }
}

TEST_CASE("bfloat16 is multiplied as it is where no sum can be subnormal, and not where one can") {
  constexpr float kLeast = 0x1p-119F, kBelow = 0x1.fep-120F;
  const struct {
    float number;
    bool small;
  } kNumbers[] = {{0, false},     {-0.0F, false},    {kLeast, false},    {-kLeast, false},
                  {kBelow, true}, {-kBelow, true},   {kSmallest, false}, {0x1p-133F, true},
                  {kNan, false},  {kLargest, false}, {-kInfinity, false}};
  const Layer ones({.rows = 3, .inputs = 40, .outputs = 65});
  for (const auto& [number, small] : kNumbers) {
    Layer layer(ones);
    layer.x[50] = number;
    const bool all = layer.variants(Product::OfBFloat16) == ones.variants(Product::OfBFloat16);
    CHECK(all == (!small || ones.variants(Product::OfBFloat16).empty()));
    CHECK((!small || layer.variants(Product::OfBFloat16).empty()));
  }
  // The smallest of them, whose sums come closest to zero, and to nothing
  Layer layer({.rows = 4, .inputs = 700, .outputs = 65, .has_bias = false});
  for (std::size_t i = 0; i < layer.x.size(); ++i) {
    layer.x[i] = (i % 3 == 0 ? 1 : -1) * (kLeast + static_cast<float>(i % 5) * 0x1p-126F);
  }
  check(layer);
  const std::uint16_t one = 0x3f80;
  float out = 0;
  kernels::force(Variant::Scalar);
  CHECK_THROWS_AS(
      kernels::int8_product({&one, 1, 1, layer.view(), nullptr, DType::Float32, &out, 1, 0, 0}),
      std::invalid_argument);
  kernels::reset();
}

TEST_CASE("no inputs: the bias, or zero, and NaN by a scale that is NaN") {
  for (const bool has_bias : {false, true}) {
    Layer layer({.rows = 3, .inputs = 0, .outputs = 66, .has_bias = has_bias});
    layer.scales[1] = layer.x_scales[2] = kNan;
    check(layer);
    const float first = has_bias ? layer.bias[0] : 0;
    CHECK(layer.run(Product::WeightInt8, Variant::Scalar)[0] == rounded(DType::Float32, first));
  }
  kernels::reset();
}

TEST_CASE("pointers aligned to nothing but an element") {
  const Layer layer({.rows = 11, .inputs = 95, .outputs = 130});
  const auto moved = [](const auto& numbers, std::size_t offset) {
    auto copy = numbers;
    copy.insert(copy.begin(), offset, {});
    return copy;
  };
  for (const std::size_t offset : {1, 3, 17}) {
    const Floats x = moved(layer.x, offset), scales = moved(layer.scales, offset),
                 bias = moved(layer.bias, offset), x_scales = moved(layer.x_scales, offset);
    const Bytes packed = moved(layer.packed, offset), x_q = moved(layer.x_q, offset);
    const std::vector<std::uint16_t> low = moved(low_of(layer.x), offset);
    const Int8Weight weight{packed.data() + offset, scales.data() + offset, 130, 95};
    for (const Product product : kProducts) {
      for (const Variant variant : layer.variants(product)) {
        Floats out(11 * 130 + offset);
        kernels::force(variant);
        if (product == Product::WeightInt8) {
          kernels::int8_product({x.data() + offset, 95, 11, weight, bias.data() + offset,
                                 DType::Float32, out.data() + offset, 130, 0, 3});
        } else if (product == Product::OfBFloat16) {
          kernels::int8_product({low.data() + offset, 95, 11, weight, bias.data() + offset,
                                 DType::Float32, out.data() + offset, 130, 0, 3});
        } else {
          kernels::int8_product({x_q.data() + offset, 96, 11, weight, bias.data() + offset,
                                 DType::Float32, out.data() + offset, 130, 0, 3,
                                 x_scales.data() + offset});
        }
        const Bits expected = layer.run(product, variant);
        CHECK(std::memcmp(out.data() + offset, expected.data(), expected.size() * 4) == 0);
      }
    }
  }
}

TEST_CASE("a result that is neither low nor float32 is refused") {
  const Layer layer({.rows = 1, .inputs = 4, .outputs = 1});
  for (const DType to : {DType::Other, DType::Float8, DType::Float64}) {
    double out = 0;
    CHECK_THROWS_AS(
        kernels::int8_product({layer.x.data(), 4, 1, layer.view(), nullptr, to, &out, 1, 0, 1}),
        std::invalid_argument);
    CHECK_THROWS_AS(kernels::int8_product({layer.x_q.data(), 4, 1, layer.view(), nullptr, to, &out,
                                           1, 0, 1, layer.x_scales.data()}),
                    std::invalid_argument);
  }
}
