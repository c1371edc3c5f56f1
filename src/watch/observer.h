// What happens while a report is open, told by those who see it: patched ops and autocast kernels
// (Watch), the casts among them, the backward of a cast, the modules whose forward runs, and torch
// itself, which tells of every op that it dispatches.
//
// Each thread has a stack of the calls that it is in. An op is shown, as a row of the report, where
// a rule decided it, or where no other op has called it: what torch does inside an op is that op's.
//
// With no report open, all of it costs the flag test of report::anyone_listens().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "policy/decide.h"
#include "policy/policy.h"
#include "report/listening.h"
#include "report/report.h"
#include "cast/numbers.h"
#include "cast/tensors.h"

namespace habana_mp::watch {

inline bool reporting() { return report::listens(report::Listener::Report); }

// From now on, to all reports that are open. Several may be.
std::shared_ptr<report::Report> open_report();
void close_report(const std::shared_ptr<report::Report>& report);

// A report as it is now, with what its numbers stand for.
struct Told {
  report::Report report;
  report::Sites sites;
  report::Paths paths;
};
Told told_by(const report::Report& report);

// A number for what decides, of its content: a region that is made anew at each step is one.
std::uint32_t context_of(const Policy& policy, report::FrontEnd front_end);
// That of a rule of the conversion in force.
std::uint32_t context_of(std::string_view rule);
// What ops that nothing decides are counted under: set after each conversion and revert (null).
void renew_conversion(const Policy* policy);

// A decided call of an op, from its decision to its end.
class Watch {
 public:
  struct What {
    std::uint32_t op;
    std::uint32_t context;
    report::FrontEnd front_end;
    Decision decision;
    bool hides;  // nothing inside it has a row of its own unless a rule decides it
  };
  // The rest of a Site, asked at the first call of it. Holds the GIL.
  using Describe = c10::function_ref<report::Site()>;

  Watch() = default;
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void begin(const What& what, Tensors given, Describe describe);
  // The casts that were made do not count: they are made again.
  void forget_casts();
  void end(Tensors results);
  bool begun() const { return begun_; }

 private:
  bool begun_ = false;
};

// cast_to(), told to the call that this thread is in.
at::Tensor watched_cast(const at::Tensor& source, DType to, How how);
PyObject* watched_cast(PyObject* source, DType to, How how);

// What the node of a cast keeps, to tell whose backward it is. 0 while no report is open.
std::uint64_t origin_here();
void tell_backward(std::uint64_t origin, const at::Tensor& gradient, DType to,
                   c10::function_ref<void()> cast);

// A module's forward begins and ends on this thread. With the GIL.
void enter_module(PyObject* module);
void leave_module(PyObject* module);

// Whether somebody beside the report looks at what torch dispatches: a profiler.
bool profiled();

}  // namespace habana_mp::watch
