// Which way computes a product or a convolution: measured once for a shape, in this process, on
// made-up numbers.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "call/packed_trial.h"
#include "policy/dtype.h"
#include "weights/packed_weight.h"

namespace habana_mp {

struct Shape {
  Layout layout;
  DType to;
  std::int64_t rows, inputs, outputs;
  bool bias;
  int threads;

  friend auto operator<=>(const Shape&, const Shape&) = default;
};

struct ConvolutionShape {
  Form form;
  DType to;
  std::array<std::int64_t, 5> images, weight;  // sizes; the last stays 0 where there are four
  bool bias;
  int threads;

  friend auto operator<=>(const ConvolutionShape&, const ConvolutionShape&) = default;
};

By chosen(const Shape& shape);
By chosen(const ConvolutionShape& shape);

// For tests, whose results are not to depend on a measurement: without one, weights are packed
// wherever they can be. A change forgets what was chosen.
void measure_choices(bool on);

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
