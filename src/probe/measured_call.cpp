#include "probe/measured_call.h"

#include <algorithm>
#include <mutex>

#include "base/op_schema.h"
#include "cast/dtypes.h"
#include "cast/tensors.h"
#include "evidence/shadows.h"
#include "policy/op_traits.h"
#include "scope/regions.h"
#include "watch/observatory.h"
#include "watch/observer.h"

namespace habana_mp::probe {

using report::Outcome;
using watch::Frame;

const Frame* counted_with(const watch::Thread& thread) {
  for (auto frame = thread.frames.rbegin(); frame != thread.frames.rend(); ++frame) {
    if (frame->shown || frame->kind == Frame::Kind::Backward) return &*frame;
  }
  return nullptr;
}

bool is_transparent(const Frame& frame, const evidence::Op& op) {
  if (!op.composite) return false;
  const Insides insides = insides_of(without_aten(op.handle.schema().name()));
  const Outcome outcome = frame.call.key.outcome;
  if (frame.kind == Frame::Kind::Decided) {
    return insides != Insides::Own && outcome != Outcome::Lower && outcome != Outcome::Fp32 &&
           outcome != Outcome::Promote;
  }
  return insides != Insides::Own && outcome == Outcome::Unlisted &&
         autocast::this_thread.state != nullptr;
}

bool is_transparent(const Frame& frame, const evidence::Op& op, c10::ArrayRef<c10::IValue> inputs) {
  if (is_transparent(frame, op)) return true;
  if (!op.composite || frame.kind == Frame::Kind::Decided) return false;
  if (autocast::this_thread.state != nullptr) return false;  // our regions say what they cast
  const c10::DispatchKeySet on = c10::autocast_dispatch_keyset - autocast::excluded_here();
  return std::ranges::any_of(tensors_in(inputs), [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return false;
    const c10::DispatchKeySet keys = tensor.key_set() & on;
    return !keys.empty() && !op.handle.hasKernelForDispatchKey(keys.highestPriorityTypeId());
  });
}

bool rounds_by_casts(const Frame& frame, const evidence::Op& op) {
  if (frame.cast_tensors.empty() || !op.written.empty()) return false;
  const std::lock_guard guard(watch::all().mutex);
  return watch::all().sites[frame.call.site].op == without_aten(op.handle.schema().name());
}

bool has_low(c10::ArrayRef<c10::IValue> arguments, const watch::CastTensors& casts) {
  const auto tensors = tensors_in(arguments);
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    // A kernel of autocast casts behind the beginning of the call, a patched op before it.
    const auto cast = std::find_if(casts.begin(), casts.end(),
                                   [&](const auto& pair) { return pair.first.is_same(tensor); });
    const at::Tensor& ran = cast == casts.end() ? tensor : cast->second;
    return ran.defined() && may_be_low(dtype_of(ran));
  });
}

bool ran_low(const MeasuredCall& context, const std::vector<c10::IValue>& results) {
  return has_low(context.arguments, context.casts) || (!context.backward && has_low(results));
}

bool hands_on(const MeasuredCall& context, const std::vector<c10::IValue>& results) {
  return context.casts.empty() && !context.arguments.empty() && results.front().isTensor() &&
         context.arguments.front().isTensor() && context.op->written.empty() &&
         results.front().toTensor().is_same(context.arguments.front().toTensor());
}

bool is_lowered(const MeasuredCall& context) {
  const std::lock_guard guard(watch::all().mutex);
  return context.site != report::kNone &&
         context.epoch == watch::epoch.load(std::memory_order_relaxed) &&
         watch::all().sites[context.site].outcome == Outcome::Lower;
}

std::vector<at::Tensor> MeasuredCall::given_tensors() const {
  std::vector<at::Tensor> found;
  for (const at::Tensor& tensor : tensors_in(arguments)) found.push_back(given(tensor));
  return found;
}

void MeasuredCall::keep(c10::ArrayRef<c10::IValue> given) {
  arguments = evidence::kept(*op, given);
  const auto originals = tensors_in(given), copies = tensors_in(arguments);
  for (std::size_t i = 0; i < originals.size() && i < copies.size(); ++i) {
    if (!originals[i].is_same(copies[i])) evidence::copy_shadows(originals[i], copies[i]);
  }
  const bool writes = op->written.size() == 1 && op->written.front() == 0;
  if (writes && given.front().isTensor() && given.front().toTensor().defined())
    before = evidence::version_of(given.front().toTensor());
}

}  // namespace habana_mp::probe
