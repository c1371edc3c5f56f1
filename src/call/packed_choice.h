// Which way computes a product: measured once for a shape, in this process, on made-up numbers.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>

#include "call/packed_product.h"
#include "policy/dtype.h"

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

By chosen(const Shape& shape);

}  // namespace habana_mp
