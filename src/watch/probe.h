// Whoever looks at the numbers of calls while they run: one at a time, since each looks at every
// op. The probes are in src/probe/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "report/site.h"

namespace habana_mp::watch {

struct Thread;

class Probe;

using CastTensors = c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 0>;

// A call that a probe looks at, between its beginning and its end. A probe keeps what it needs in a
// type of its own.
struct ProbedCall : at::ObserverContext {
  Probe* by = nullptr;
  // What a kernel of autocast decides and casts behind the beginning of the call comes to these.
  report::SiteId site = report::kNone;
  CastTensors casts{};
};

class Probe {
 public:
  virtual ~Probe() = default;

  // As its users call it: "find_nonfinite".
  virtual std::string_view name() const = 0;
  // Whether it wants to hear of what this thread does.
  virtual bool hears_here() const = 0;
  // An op of the dispatcher begins, and its frame is on the stack of the thread: what must be kept
  // of it until it ends, null where it is not looked at.
  virtual std::unique_ptr<ProbedCall> begins(const Thread& thread,
                                             const at::RecordFunction& call) = 0;
  virtual void ends(const Thread& thread, const at::RecordFunction& call, ProbedCall& kept) = 0;
  // Whether calls of one op in one module are rows of their own by their places in the code.
  virtual bool tells_places() const { return false; }
  // A cast of ours, which no op of the dispatcher makes.
  virtual void casts(const at::Tensor&, const at::Tensor&) {}
  // The same in the backward pass of a call, of which the site is: a gradient goes back to the
  // dtype of what the call was given.
  virtual void casts_back(report::SiteId, const at::Tensor& gradient, const at::Tensor& result) {
    casts(gradient, result);
  }
  // A node of a backward pass begins.
  virtual void node_begins(const at::RecordFunction&) {}
};

namespace detail {
inline std::atomic<Probe*> probe{nullptr};
}

// From now on the probe looks at the numbers of calls, until it is removed. std::runtime_error
// while another one does.
void set_probe(Probe& probe);
void remove_probe(Probe& probe);

// Null where the numbers are nobody's business.
inline Probe* probe() { return detail::probe.load(std::memory_order_relaxed); }

// The same on this thread.
inline Probe* probe_here() {
  Probe* looking = probe();
  return looking != nullptr && looking->hears_here() ? looking : nullptr;
}

}  // namespace habana_mp::watch
