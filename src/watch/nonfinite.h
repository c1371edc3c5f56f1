// The first op of a step whose result is not finite while what it was given is, looked for while a
// finder is open. Numbers that are not finite are followed from op to op, so that one which is
// meant (a mask of -inf, the log of a zero that is masked later) is told from one that spoils the
// step: that one reaches a gradient, a weight or what the step returns.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "report/site.h"
#include "watch/call_stack.h"

namespace habana_mp::watch {

// A float tensor that an op was given: finite all, or it would not be looked at.
struct GivenTensor {
  std::string dtype;
  std::vector<std::int64_t> sizes;
  double smallest = 0;
  double largest = 0;
};

struct Nonfinite {
  report::Site site;  // the row of the report that it belongs to
  std::string inner;  // the op of the dispatcher: "aten::exp"
  bool backward = false;
  bool nan = false;                // or infinite
  std::string dtype;               // of the result
  bool finite_in_float32 = false;  // from the same inputs
  std::vector<GivenTensor> given;
};

namespace detail {
inline std::atomic<bool> finding{false};
}

inline bool finds() { return detail::finding.load(std::memory_order_relaxed); }

// One at a time: std::runtime_error while another one is open.
void start_finding();
// What the step returned counts as reached, and ends the search: the one that came first of those
// that reached something, if there is one.
std::unique_ptr<Nonfinite> stop_finding(const std::vector<at::Tensor>& returned);

std::unique_ptr<at::ObserverContext> checked_call(const at::RecordFunction& call);
void end_checked(Thread& thread, const at::RecordFunction& call, at::ObserverContext& context);

// A cast of ours, which no op of the dispatcher makes: what is not finite goes with it, and what
// the new dtype does not hold is made by it.
void pass_on(const at::Tensor& source, const at::Tensor& result);

}  // namespace habana_mp::watch
