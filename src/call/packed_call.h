// Products with a weight that the weight cache holds packed: linear and addmm, on the CPU, where no
// graph is recorded. The same numbers as by a plain copy, in less time.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "policy/dtype.h"
#include "weights/weight_cache.h"

namespace habana_mp {

// How a packed weight serves an op, by its name in lists: Plain where it does not.
Layout packed_layout(std::string_view op);

// A call of linear(input, weight, bias) or addmm(bias, input, weight) whose rule takes float32 to
// `to`. The bias may be undefined.
struct ProductCall {
  Layout layout;
  const at::Tensor& input;
  const at::Tensor& weight;
  const at::Tensor& bias;
  DType to;
  WeightCache::Caller caller;
};

// Its result; undefined, and nothing has been done, where the op is to be called with a plain copy.
// Casts of arguments are passed on to the listeners.
at::Tensor call_packed(const ProductCall& call);

// When a copy is packed.
enum class Packing : std::uint8_t {
  Off,      // never
  Equal,    // where that is faster and gives the numbers of a plain copy, bit for bit
  Fastest,  // where it is faster
  Always,   // where it can be, without a measurement
};
inline constexpr std::array<std::string_view, 4> kPackingNames = {"off", "equal", "fastest",
                                                                  "always"};
void set_packing(Packing packing);

}  // namespace habana_mp
