// Which way computes a product or a convolution: measured once for a shape, in this process, on
// made-up numbers.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "call/packed_trial.h"
#include "policy/dtype.h"
#include "weights/packed_weight.h"

namespace habana_mp {

// When a copy is packed.
enum class Packing : std::uint8_t {
  Off,      // never
  Equal,    // where that is faster and gives the numbers of a plain copy, bit for bit
  Fastest,  // where it is faster
  Always,   // where it can be, without a measurement
};
inline constexpr std::array<std::string_view, 4> kPackingNames = {"off", "equal", "fastest",
                                                                  "always"};

struct Shape {
  Layout layout;
  DType to;
  std::int64_t rows, inputs, outputs;
  bool bias;
  int threads;
  Packing packing;

  friend auto operator<=>(const Shape&, const Shape&) = default;
};

struct ConvolutionShape {
  Form form;
  DType to;
  std::array<std::int64_t, 5> images, weight;  // sizes; the last stays 0 where there are four
  bool bias;
  int threads;
  Packing packing;

  friend auto operator<=>(const ConvolutionShape&, const ConvolutionShape&) = default;
};

By chosen(const Shape& shape);
By chosen(const ConvolutionShape& shape);

// A choice as it is shown.
struct Choice {
  std::string op;
  std::vector<std::int64_t> input, weight;  // sizes that were tried
  DType to;
  int threads;
  Measured measured;
};
std::vector<Choice> choices();

}  // namespace habana_mp
