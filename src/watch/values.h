// The numbers of calls, measured while a report wants them: each op is run once more, in float32 or
// in the low dtype, and the gradient of its result is multiplied with the difference. Private to
// this folder.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "evidence/rerun.h"
#include "report/values.h"
#include "watch/call_stack.h"

namespace habana_mp::watch {

namespace detail {
inline std::atomic<unsigned> measuring{0};  // reports that measure
}

inline bool measures() { return detail::measuring.load(std::memory_order_relaxed) != 0; }

// What is kept of a call between its beginning and its end.
struct MeasuredCall final : at::ObserverContext {
  const evidence::Op* op = nullptr;  // null: it is inside of one that is measured
  std::vector<c10::IValue> arguments;
  CastTensors casts;
  report::SiteId site = report::kNone;
  std::uint64_t epoch = 0;
  bool backward = false;
};

void start_measuring(const report::Measure& measure);
void stop_measuring();

// An op of the dispatcher begins, and its frame is on the stack of the thread: what must be kept of
// it for ends(), null where it is not measured.
std::unique_ptr<at::ObserverContext> measured_call(Thread& thread, const at::RecordFunction& call);
void end_measured(Thread& thread, const at::RecordFunction& call, const MeasuredCall& measured);

}  // namespace habana_mp::watch
