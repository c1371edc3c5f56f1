// The first op of a step whose result is not finite while what it was given is, looked for while a
// finder is open. Numbers that are not finite are followed from op to op, so that one which is
// meant (a mask of -inf, the log of a zero that is masked later) is told from one that spoils the
// step: that one reaches a gradient, a weight or what the step returns. Those that no op has made
// of finite ones come from outside: from data, a constant, another thread or process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "report/site.h"

namespace habana_mp::probe {

// A float tensor that an op was given.
struct GivenTensor {
  std::string dtype;
  std::vector<std::int64_t> sizes;
  double smallest = 0;
  double largest = 0;
};

struct Nonfinite {
  report::Site site;  // the row of the report that it belongs to
  std::string inner;  // the op of the dispatcher: "aten::exp"; "" where no op is known
  bool backward = false;
  bool nan = false;    // or infinite
  std::string dtype;   // of the result
  bool casts = false;  // a change of dtype alone: the numbers are finite before it
  // Of the same call in float32, where it was made again: whether its result is finite, or as its
  // inputs are, and the largest of the finite numbers in it. Of a change of dtype, before it.
  bool ran_in_float32 = false;
  bool finite_in_float32 = false;
  double largest_in_float32 = 0;
  double loss_scale = 1;        // in a backward pass: what the loss is multiplied by
  bool from_outside = false;    // it was given such numbers, which no op has made of finite ones
  bool from_constants = false;  // and they are numbers of Python
  std::vector<GivenTensor> given;
};

// std::runtime_error where another probe looks at the numbers.
void start_finding();
// What the step returned counts as reached, and ends the search: the one that came first of those
// that reached something, if there is one.
std::unique_ptr<Nonfinite> stop_finding(const std::vector<at::Tensor>& returned);

}  // namespace habana_mp::probe
