#include "probe/rows.h"

#include "base/op_schema.h"
#include "policy/op_traits.h"
#include "scope/regions.h"

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
    return insides == Insides::Compound && outcome != Outcome::Lower && outcome != Outcome::Fp32 &&
           outcome != Outcome::Promote;
  }
  return insides != Insides::Own && outcome == Outcome::Unlisted &&
         autocast::this_thread.state != nullptr;
}

}  // namespace habana_mp::probe
