// The calls of a step in which ops choose: each is looked at for what it chooses, or for what
// choices before it come to. Of a report with values.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <memory>
#include <vector>

#include "probe/measured_call.h"
#include "watch/call_stack.h"

namespace habana_mp::probe {

// Quickly: most calls need not be.
bool may_be_followed(const at::RecordFunction& call);

// A call begins, on a thread that is measured, outside of calls that are measured as a whole.
// `context`: what is kept of it to be measured; made where it is null and the call is followed. The
// time of both is left out of that of the call.
void begin_followed(const watch::Thread& thread, const at::RecordFunction& call,
                    std::unique_ptr<MeasuredCall>& context);
void end_followed(const MeasuredCall& context, const std::vector<c10::IValue>& results);

}  // namespace habana_mp::probe
