// What happens while somebody listens, as it is seen by patched ops and autocast kernels
// (WatchedCall), the casts among them, the backward of a cast, the modules whose forward runs, and
// torch itself, which calls back for every op that it dispatches.
//
// Each thread has a stack of the calls that it is in. An op is shown, as a row of the report, where
// a rule decided it, or where no other op has called it: what torch does inside an op is that op's.
//
// With nobody listening, all of it costs the flag test of report::anyone_listens().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/python_headers.h>

#include <memory>
#include <string>
#include <vector>

#include "cast/tensors.h"
#include "policy/policy.h"
#include "report/call_queue.h"
#include "report/listening.h"
#include "report/report.h"

namespace habana_mp::watch {

// Whether anybody listens to calls, such as an open report.
inline bool watching() { return report::anyone_hears(report::Hears::Calls); }

// From now on every call goes to the listener too, until it is removed. Several may listen.
void listen(std::shared_ptr<report::Listener> listener);
void unlisten(const report::Listener& listener);

// A report as it is now, with what its numbers stand for.
struct Snapshot {
  report::Report report;
  report::Sites sites;
  report::Paths paths;
};
Snapshot snapshot_of(const report::Report& report);

// The calls that a queue which listens has kept since the last time.
std::vector<report::EndedCall> take_calls(report::CallQueue& queue);

// A decided call of an op, from its decision to its end.
class WatchedCall {
 public:
  // What is counted with it beside the call itself, asked at the first call of its site.
  struct Decider {
    std::shared_ptr<const Policy> policy;
    std::string rule;
  };
  struct What {
    bool dispatched;  // seen at the dispatcher, not at a name of Python
    bool hides;       // nothing inside it has a row of its own unless a rule decides it
    c10::function_ref<Tensors()> inputs;
    c10::function_ref<Decider()> decider;
  };

  WatchedCall() = default;
  ~WatchedCall();
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

  // Of `call`, what is known when it begins, but the module in its key. Throws what a listener
  // throws.
  void begin(const report::Call& call, const What& what);
  // The casts that were made do not count: they are made again.
  void forget_casts();
  // The call has failed and is begun again under another decision: it does not count.
  void abandon();
  void end(Tensors results);
  bool begun() const { return begun_; }

 private:
  bool begun_ = false;
};

// Whether this thread is in a decided call that is being watched, with which its casts are then
// counted.
bool in_watched_call();
void notify_cast(const at::Tensor& source, const at::Tensor& result, const report::Cast& cast);

// A module's forward begins and ends on this thread. With the GIL.
void enter_module(PyObject* module);
void leave_module(PyObject* module);
// The step of an optimizer begins or ends on this thread.
void set_in_optimizer(bool inside);

}  // namespace habana_mp::watch
