// The numbers of calls, measured while a report wants them: each op is run once more, in float32 or
// in the low dtype, and the gradient of its result is multiplied with the difference. Private to
// this folder.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "report/values.h"
#include "watch/call_stack.h"

namespace habana_mp::watch {

namespace detail {
inline std::atomic<unsigned> measuring{0};  // reports that measure
}

inline bool measures() { return detail::measuring.load(std::memory_order_relaxed) != 0; }

void start_measuring(const report::Measure& measure);
void stop_measuring();

// A node of a backward pass begins: what runs in it is counted with the call that made it.
void count_with_maker(const at::RecordFunction& node);

// An op of the dispatcher begins, and its frame is on the stack of the thread: what must be kept of
// it for end_measured(), null where it is not measured.
std::unique_ptr<at::ObserverContext> measured_call(Thread& thread, const at::RecordFunction& call);
void end_measured(Thread& thread, const at::RecordFunction& call, const MeasuredCall& context);

}  // namespace habana_mp::watch
