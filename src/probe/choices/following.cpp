#include "probe/choices/following.h"

#include <exception>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/torch_private.h"
#include "cast/tensors.h"
#include "evidence/loss_scale.h"
#include "probe/choices/margins.h"
#include "probe/choices/twins.h"
#include "probe/values.h"
#include "watch/backward_pass.h"

namespace habana_mp::probe {
namespace {

using watch::Frame;

template <typename Act>
void aside(const Act& act) {
  try {
    act();
  } catch (const std::exception&) {  // the call is measured all the same
  }
}

void begin(const Frame& frame, const evidence::Op& op, c10::ArrayRef<c10::IValue> inputs,
           std::unique_ptr<MeasuredCall>& context) {
  const auto tensors = tensors_in(inputs);
  note_saved_tensor_hooks();
  if (evidence::begins_backward(op, tensors)) {
    const double scale = evidence::loss_scale(tensors.front()).by_tensor;
    reach_loss(tensors.front(), scale);
    begin_backward_at(tensors.front(), {});
    watch::begin_scaled(scale);  // last, as that runs passes of its own
  }
  const bool chooses = is_choice(op, inputs);
  const auto casts = frame.kind == Frame::Kind::Decided ? frame.cast_tensors : watch::CastTensors();
  auto followed = chooses ? nullptr : follow(op, inputs, casts);
  if (!chooses && followed == nullptr) return;
  if (context == nullptr) {
    context = std::make_unique<MeasuredCall>();
    context->op = &op;
    context->arguments.assign(inputs.begin(), inputs.end());
    context->site = frame.call.site;
    context->aside = true;
  }
  context->chooses = chooses;
  context->followed = std::move(followed);
}

}  // namespace

bool may_be_followed(const at::RecordFunction& call) {
  const std::string_view name(call.name());
  return has_twins() || may_choose(name) || name == "aten::ones_like" ||
         torch_private::has_saved_tensor_hooks();
}

void begin_followed(const watch::Thread& thread, const at::RecordFunction& call,
                    std::unique_ptr<MeasuredCall>& context) {
  const Frame* frame = counted_with(thread);
  const evidence::Op* op = evidence::op_of(call);
  if (frame == nullptr || frame->kind == Frame::Kind::Backward || op == nullptr ||
      frame->call.site == report::kNone) {
    return;
  }
  aside([&] { begin(*frame, *op, call.inputs(), context); });
}

void end_followed(const MeasuredCall& context, const std::vector<c10::IValue>& results) {
  if (results.empty() || (!context.chooses && context.followed == nullptr)) return;
  aside([&] {
    if (context.chooses) follow_choice(context.site, *context.op, context.arguments, results);
    if (context.followed != nullptr) context.followed->ends(results);
  });
}

}  // namespace habana_mp::probe
