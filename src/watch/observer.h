// What happens while somebody listens, as it is seen by patched ops and autocast kernels
// (listen/watched_call.h), the casts among them, the backward of a cast, the modules whose forward
// runs, and torch itself, which calls back for every op that it dispatches.
//
// Each thread has a stack of the calls that it is in. An op is shown, as a row of the report, where
// a rule decided it, or where no other op has called it: what torch does inside an op is that op's.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>
#include <vector>

#include "listen/watched_call.h"
#include "report/call_queue.h"
#include "report/listening.h"
#include "report/report.h"

namespace habana_mp::watch {

// Whether anybody listens to calls, such as an open report.
inline bool watching() { return listen::anyone_hears(listen::Hears::Calls); }

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

// What the engine calls while somebody listens, for good.
listen::Observer& observer();

// A module's forward begins and ends on this thread. With the GIL.
void enter_module(PyObject* module);
void leave_module(PyObject* module);
// The step of an optimizer begins or ends on this thread.
void set_in_optimizer(bool inside);

}  // namespace habana_mp::watch
