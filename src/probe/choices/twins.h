// Two runs beside that of the program, both in float32, from where an op chooses by its numbers:
// one goes on with what is chosen, the other with something else at the narrowest margins. Where
// they end, at a loss or at the outputs, their difference is what such choices are worth: no
// gradient tells it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "evidence/rerun.h"
#include "watch/probe.h"

namespace habana_mp::probe {

// The choices that twins come from: of one forward pass. It is there as long as a tensor that they
// have come to is.
struct Step {
  virtual ~Step() = default;

  std::atomic<bool> lost{false};  // a call could not be followed: what they are worth is not known
};

// What a tensor is in the two runs, not always of its sizes: experts get other numbers of rows.
struct Twins {
  at::Tensor chosen, otherwise;
  std::shared_ptr<Step> step;
};

std::optional<Twins> twins_of(const at::Tensor& tensor);
// Floating numbers become float32.
void keep_twins(const at::Tensor& tensor, const Twins& twins);
// Those of tensors that are gone.
void sweep_twins();
void forget_twins();
bool has_twins();  // any tensor; some may be gone

// A call that is made again in the two runs when it ends.
class FollowedCall {
 public:
  FollowedCall(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments,
               const watch::CastTensors& casts, std::shared_ptr<Step> step);
  ~FollowedCall();
  FollowedCall(const FollowedCall&) = delete;
  FollowedCall& operator=(const FollowedCall&) = delete;

  void ends(const std::vector<c10::IValue>& results);

 private:
  const evidence::Op& op_;
  torch::jit::Stack chosen_, otherwise_;
  std::shared_ptr<Step> step_;
  c10::SmallVector<at::Tensor, 2> written_;
  // Of each argument the memory in the program and in the two runs.
  struct Memory {
    const c10::StorageImpl *program, *chosen, *otherwise;
  };
  c10::SmallVector<Memory, 4> memory_;
};

// A call begins; null where nothing that it is given has twins, and inside of a call that is
// followed as a whole. `casts`: of what it was given.
std::unique_ptr<FollowedCall> follow(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments,
                                     const watch::CastTensors& casts);

}  // namespace habana_mp::probe
