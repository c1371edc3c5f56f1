// The graph of autograd that goes on where the program ends it: behind detach(), and behind ops in
// no_grad that are given what requires gradients. Each op behind runs once more in a graph of ours,
// up to the loss or the outputs, so that the errors before count as if nothing were detached.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>

#include <memory>
#include <vector>

#include "evidence/rerun.h"
#include "watch/probe.h"

namespace habana_mp::probe {

// Quickly: most calls need not be.
bool may_be_continued(const at::RecordFunction& call);

// A call that runs once more in our graph when it ends.
class ContinuedCall {
 public:
  ContinuedCall(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments,
                const watch::CastTensors& casts, bool again, bool detaches);
  ~ContinuedCall();
  ContinuedCall(const ContinuedCall&) = delete;
  ContinuedCall& operator=(const ContinuedCall&) = delete;

  void ends(const std::vector<c10::IValue>& results, report::SiteId site);

 private:
  // Whether it could.
  bool run(c10::ArrayRef<at::Tensor> results);

  const evidence::Op& op_;
  std::vector<c10::IValue> arguments_;
  watch::CastTensors casts_;
  bool again_;
  bool detaches_;
  torch::jit::Stack stack_{};  // the arguments in our graph, then the results
};

// A call begins; null where it is not behind anything detached, and inside of a call that is
// continued as a whole. `casts`: of what it was given. `function`: inside of one of autograd, which
// has a gradient of its own, so that its calls are not made again.
std::unique_ptr<ContinuedCall> continue_behind(const evidence::Op& op,
                                               c10::ArrayRef<c10::IValue> arguments,
                                               const watch::CastTensors& casts, bool function);

// A graph may run code of others when it is gone through: no pass of ours may, until the next loss.
void note_saved_by_hooks();
// A backward pass with create_graph has made something that the next loss may be made of.
void note_gradients_of_gradients();

// A backward pass of a loss is about to begin: when it does, one of ours runs as a part of it. It
// ends the graph of what is behind something detached, but for other losses.
void continue_loss(const at::Tensor& loss);
// The same of an output, at once.
void continue_output(const at::Tensor& output, const at::Tensor& gradient);

void forget_continued();

}  // namespace habana_mp::probe
