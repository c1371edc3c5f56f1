// Whether numbers are finite, and how they are not.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace habana_mp::evidence {

struct NotFinite {
  bool nan = false, above = false, below = false;  // a NaN, an infinity, one below zero

  bool any() const { return nan || above || below; }
  void add(const NotFinite& other) {
    nan = nan || other.nan;
    above = above || other.above;
    below = below || other.below;
  }
  // What is here and not there.
  bool beyond(const NotFinite& other) const {
    return (nan && !other.nan) || (above && !other.above) || (below && !other.below);
  }
};

// Of a tensor of any dtype: whole numbers are finite.
NotFinite not_finite(const at::Tensor& tensor);

// The largest absolute value among those that are finite; 0 where none is known.
double largest_finite(const at::Tensor& tensor);

// Of an argument: a tensor, tensors, or a number.
NotFinite not_finite(const c10::IValue& argument);

}  // namespace habana_mp::evidence
