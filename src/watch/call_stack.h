// The calls and modules that a thread is in while a report is open, and what becomes of a call when
// it ends: a count in its row, and what is known of its results. The observer's own: others ask
// torch/observer.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "policy/dtype.h"
#include "report/report.h"
#include "watch/module_stack.h"
#include "cast/tensors.h"

namespace habana_mp::watch {

std::uint64_t now_ns();

// The user's line, "" where Python cannot be asked.
std::string source_here();

// A call that a thread is in.
struct Frame {
  enum class Kind : std::uint8_t { Dispatched, Decided, Backward };
  Kind kind;
  bool shown = false;
  bool hides = true;
  std::uint64_t epoch = 0;       // of the site
  DType runs_in = DType::Other;  // as a rule says
  std::uint32_t op = 0;
  report::SiteId site = report::kNone;
  std::uint64_t start = 0;
  std::uint64_t inside_ns = 0;  // of rows of their own
  unsigned given = 0;
  report::PathId path = report::kNone;  // for the results
  std::uint64_t path_ns = 0;
  bool begins = false;  // the path is this call's own
  c10::SmallVector<report::Cast, 3> casts{};
  c10::SmallVector<const c10::StorageImpl*, 4> memory{};  // of what it was given: to be compared
};

struct Thread {
  std::uint64_t epoch = 0;
  unsigned hidden = 0;  // frames that hide
  std::vector<Frame> frames;
  ModuleStack modules;

  // A function of torch that calls the method of its name (F.softmax) is one call with it.
  bool in_function_of(std::uint32_t op) const {
    return !frames.empty() && frames.back().kind == Frame::Kind::Decided && frames.back().op == op;
  }
};

// Its frames are of the reports that are open now.
Thread& this_thread();
Frame* top();
void push(Thread& thread, Frame frame);
Frame pop(Thread& thread);

// A call begins that is a row: which way its tensors came.
void show(Frame& frame, Tensors given);
// One that was shown ends.
void finish(Thread& thread, const Frame& frame, Tensors results);
// It has made a cast.
void tell_cast(Frame& frame, const at::Tensor& source, const report::Cast& cast);

}  // namespace habana_mp::watch
