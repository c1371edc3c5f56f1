// A call that is looked at as a whole: what it was given, to be run again from there; which calls
// are looked at so, and which row of a report their numbers belong to.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "evidence/differences.h"
#include "evidence/draws.h"
#include "evidence/rerun.h"
#include "probe/choices/twins.h"
#include "report/values.h"
#include "watch/call_stack.h"

namespace habana_mp::probe {

struct MeasuredCall : watch::ProbedCall {
  const evidence::Op* op = nullptr;                   // null: it is inside of one that is measured
  report::Unmeasured why = report::Unmeasured::None;  // it is not run again
  std::uint64_t looked_at = 0;                        // of the thread, when it began
  std::uint64_t low = 0;                              // the same
  std::vector<c10::IValue> arguments;
  std::optional<std::int64_t> before{};  // the version of the argument that is written to
  std::uint64_t epoch = 0;
  std::uint64_t start = 0;
  // The sequence number of the first node of autograd that it may make.
  std::uint64_t nodes = at::sequence_number::peek();
  std::optional<evidence::Draws> draws{};  // of one that is run again though it draws
  bool backward = false;
  bool in_function = false;                  // of autograd, to whose results a gradient comes
  bool chooses = false;                      // it is a choice: probe/choices/margins.h
  bool aside = false;                        // it is here to be followed alone
  std::unique_ptr<FollowedCall> followed{};  // null where it is not

  // Numbers that are given as this argument, as they are in the run that this one is compared with:
  // in float32, unless a probe says otherwise.
  virtual at::Tensor reference(const at::Tensor& /*argument*/, const at::Tensor& numbers) const {
    return evidence::in_float32(numbers);
  }

  // The arguments as they are now. What the op writes to is copied, with its shadows.
  void keep(c10::ArrayRef<c10::IValue> given);

  // What an argument of the op was before its cast, or itself.
  const at::Tensor& given(const at::Tensor& argument) const {
    for (const auto& [source, result] : casts) {
      if (result.is_same(argument)) return source;
    }
    return argument;
  }
  std::vector<at::Tensor> given_tensors() const;  // of all arguments
};

// A result that waits for its gradient, with what it is off by and who has made that.
struct Off {
  at::Tensor result;
  evidence::Difference difference;
  report::SiteId site = report::kNone;
  bool ran = false;                     // else it would be off by it in the low dtype
  bool inherited = false;               // the call has not made it
  bool passed = false;                  // nor this, which is to tell who reads the result
  std::optional<std::size_t> format{};  // it would be off by it in one of report::kFormats
  std::shared_ptr<evidence::InnerGradients> inner{};  // see evidence/graphs/inner_gradients.h
};

// The frame that a call is counted with: of a row, or of a backward pass; null outside of any.
const watch::Frame* counted_with(const watch::Thread& thread);

// Whether the ops inside of the op have rules of their own, and so rows: they are looked at
// instead.
bool is_transparent(const watch::Frame& frame, const evidence::Op& op);
// The same of a call, for whose insides torch.autocast may cast: its arguments and results would
// not show that it ran low.
bool is_transparent(const watch::Frame& frame, const evidence::Op& op,
                    c10::ArrayRef<c10::IValue> inputs);

// Whether an op that only moves numbers about was cast for, which rounds them.
bool rounds_by_casts(const watch::Frame& frame, const evidence::Op& op);

// Whether an op that is given these computes in a low dtype.
bool has_low(c10::ArrayRef<c10::IValue> arguments, const watch::CastTensors& casts = {});

// Whether a call ran low. What torch.autocast casts it casts unseen: the results show it.
bool ran_low(const MeasuredCall& context, const std::vector<c10::IValue>& results);

// Whether a list has lowered a call.
bool is_lowered(const MeasuredCall& context);

// Whether the result is the argument: dropout in evaluation casts at most.
bool hands_on(const MeasuredCall& context, const std::vector<c10::IValue>& results);

}  // namespace habana_mp::probe
