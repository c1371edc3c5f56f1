// The trial of the ways to compute something: which give the numbers of a plain copy, and which of
// these is the fastest.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "call/packed_product.h"
#include "policy/dtype.h"

namespace habana_mp {

struct Measured {
  By by = By::PlainCopy;
  std::array<std::uint64_t, kWays> ns{};  // of each way; 0 where it was not measured
};

// Numbers of both signs that are no multiples of each other, so that another order of additions
// shows, and another place of a number. Torch's random numbers stay as they are.
at::Tensor made_up(at::IntArrayRef sizes, DType dtype);
// The same numbers near the smallest normal one, so that subnormals taken for zeros show: among the
// numbers, their products and the sums.
at::Tensor made_tiny(const at::Tensor& numbers);

class Trial {
 public:
  virtual ~Trial() = default;

  // Of the ways that are possible here and give the numbers of a plain copy, bit for bit.
  Measured fastest() const;
  // Whether a way gives these numbers. It has to be possible.
  bool has_numbers(By way) const;

 protected:
  virtual bool is_possible(By way) const = 0;
  virtual at::Tensor run(By way, const at::Tensor& input, const at::Tensor& bias) const = 0;

  std::vector<at::Tensor> inputs_;  // that all ways have to agree on; the first one is timed
  at::Tensor bias_;                 // may be undefined

 private:
  bool is_equal(By way, const at::Tensor& input) const;
};

}  // namespace habana_mp
