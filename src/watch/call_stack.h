// The calls and modules that a thread is in while a report is open, and what becomes of a call when
// it ends: what the listeners are called with, and what is known of its results. For this folder
// and the probes: others ask watch/observer.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "cast/tensors.h"
#include "policy/dtype.h"
#include "report/event.h"
#include "watch/module_stack.h"
#include "watch/probe.h"

namespace habana_mp::watch {

// A call that a thread is in.
struct Frame {
  enum class Kind : std::uint8_t { Dispatched, Decided, Backward };
  Kind kind;
  bool shown = false;
  bool hides = true;
  bool function = false;    // of autograd, to whose results a gradient comes
  std::uint64_t epoch = 0;  // of the site
  report::Call call{};
  DType runs_in = DType::Other;  // as a rule says
  std::uint64_t start = 0;
  std::uint64_t inside_ns = 0;          // of rows of their own
  std::uint64_t aside_ns = 0;           // of instruments, before it began
  report::PathId path = report::kNone;  // for the results
  std::uint64_t path_ns = 0;
  bool begins = false;  // the path is this call's own
  c10::SmallVector<report::Cast, 3> casts{};
  c10::SmallVector<const c10::StorageImpl*, 4> memory{};  // of its inputs, to be compared
  // While a probe looks: what it cast and the results, or the call that has them.
  CastTensors cast_tensors{};
  ProbedCall* probed = nullptr;
};

struct Thread {
  std::uint64_t epoch = 0;
  unsigned hidden = 0;  // frames that hide
  bool in_optimizer = false;
  std::vector<Frame> frames;
  ModuleStack modules;

  // A function of torch that calls the method of its name (F.softmax) is one call with it.
  bool in_function_of(std::uint32_t op) const {
    return !frames.empty() && frames.back().kind == Frame::Kind::Decided &&
           frames.back().call.key.op == op;
  }
};

// Its frames are of the reports that are open now.
Thread& this_thread();
// place_here() where a probe asks for it, else 0.
std::uint64_t place_of_call();
Frame* top();
void push(Thread& thread, Frame frame);
Frame pop(Thread& thread);

// A call begins that is a row of the report: notes which way its tensors came.
void show(Frame& frame, Tensors inputs);
// A call that was shown ends.
void finish(const Thread& thread, const Frame& frame, Tensors results);
// So much of the time of the innermost row that this thread is in is not its own.
void leave_out(std::uint64_t ns);
// While one lives, a probe works: that is no time of the row, nor of the step.
class LeftOut {
 public:
  LeftOut() = default;
  ~LeftOut() { leave_out(now_ns() - start_); }
  LeftOut(const LeftOut&) = delete;
  LeftOut& operator=(const LeftOut&) = delete;

 private:
  Aside aside_;
  std::uint64_t start_ = now_ns();
};
// The call has made a cast.
void notify_cast(Frame& frame, const at::Tensor& source, const report::Cast& cast);

// Torch calls back for every op that it dispatches. An op that no rule has decided is a row of the
// report where no other op has called it. With the lock of the observer.
at::CallbackHandle watch_dispatcher();
void unwatch_dispatcher(at::CallbackHandle handle);

}  // namespace habana_mp::watch
