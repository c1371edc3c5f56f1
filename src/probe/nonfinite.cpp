#include "probe/nonfinite.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/by_memory.h"
#include "cast/tensors.h"
#include "evidence/finite.h"
#include "evidence/rerun.h"
#include "watch/call_stack.h"
#include "watch/observatory.h"
#include "watch/step_threads.h"

namespace habana_mp::probe {
namespace {

using watch::all;
using watch::Frame;
using watch::Thread;

constexpr std::size_t kMostCandidates = 1 << 12;
constexpr std::size_t kMostGiven = 4;

// Whether numbers in memory are not finite, and which candidate they come from, 0 where they are
// meant.
struct Taint {
  bool tainted = false;
  std::size_t candidate = 0;
};

struct Search {
  std::vector<Nonfinite> candidates;  // the number of one is its place + 1
  std::set<std::size_t> reached;
  bool looked = false;   // something was there to be reached: a gradient, a weight, a number
  bool spoiled = false;  // and it was not finite, by nobody knows what
  ByMemory<Taint> taints;
};

// What is taken out of the search is freed without the lock: memory that Python has seen waits for
// the GIL.
struct Finder final : watch::Probe {
  std::string_view name() const override { return "find_nonfinite"; }
  bool hears_here() const override { return watch::in_step(step.load()); }
  std::unique_ptr<watch::ProbedCall> begins(const Thread& thread,
                                            const at::RecordFunction& call) override;
  void ends(const Thread& thread, const at::RecordFunction& call, watch::ProbedCall& kept) override;
  void casts(const at::Tensor& source, const at::Tensor& result) override;
  void node_begins(const at::RecordFunction& node) override;

  ForkSafeMutex mutex;
  Search search;
  std::atomic<std::uint64_t> step{0};
};

Finder& finder() { return process_wide<Finder>(); }

struct CheckedCall final : watch::ProbedCall {
  CheckedCall();
  ~CheckedCall() override;
  CheckedCall(const CheckedCall&) = delete;
  CheckedCall& operator=(const CheckedCall&) = delete;

  const evidence::Op* op = nullptr;
  std::vector<c10::IValue> arguments;
  // Of what the op writes to, as it was before, or of a cast that a kernel of autocast made for it.
  std::size_t candidate = 0;
  evidence::NotFinite before;
  CheckedCall* outer;
};

thread_local CheckedCall* innermost = nullptr;

CheckedCall::CheckedCall() : outer(std::exchange(innermost, this)) {}
CheckedCall::~CheckedCall() { innermost = outer; }

// With the lock.
Taint taint_of(const at::Tensor& tensor) {
  const Taint* known = finder().search.taints.find(tensor);
  return known == nullptr ? Taint{} : *known;
}

std::size_t first_candidate(c10::ArrayRef<at::Tensor> tensors) {
  const std::lock_guard guard(finder().mutex);
  std::size_t first = 0;
  for (const at::Tensor& tensor : tensors) {
    const std::size_t one = taint_of(tensor).candidate;
    if (one != 0 && (first == 0 || one < first)) first = one;
  }
  return first;
}

void taint(const at::Tensor& tensor, std::size_t candidate) {
  ByMemory<Taint>::Gone gone;
  const std::lock_guard guard(finder().mutex);
  if (Taint* made = finder().search.taints.get(tensor)) *made = {true, candidate};
  gone = finder().search.taints.take_expired();
}

void clean(const at::Tensor& tensor) {
  const std::lock_guard guard(finder().mutex);
  if (Taint* known = finder().search.taints.find(tensor)) *known = {};
}

// Numbers that the step is about. Where it is not known what they come from, it is the first one
// that there is at the end, unless it is known of others.
void reach_by(c10::ArrayRef<at::Tensor> tensors) {
  const bool spoiled = std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return evidence::not_finite(tensor).any();
  });
  const std::size_t candidate = spoiled ? first_candidate(tensors) : 0;
  const std::lock_guard guard(finder().mutex);
  finder().search.looked = true;
  if (candidate != 0) {
    finder().search.reached.insert(candidate);
  } else if (spoiled) {
    finder().search.spoiled = true;
  }
}

GivenTensor given(const at::Tensor& tensor) {
  GivenTensor seen{c10::toString(tensor.scalar_type()), tensor.sizes().vec()};
  if (torch_private::is_wrapped_number(tensor)) seen.dtype = "number";
  if (tensor.numel() == 0 || !evidence::is_readable(tensor)) return seen;
  // In a row: a reduction of a tensor without dimensions is none.
  const at::Tensor wide = tensor.detach().to(at::kDouble).reshape({-1});
  seen.smallest = at::amin(wide).item<double>();
  seen.largest = at::amax(wide).item<double>();
  return seen;
}

// The row that the numbers of a call belong to.
const Frame* row_of(const Thread& thread, bool& backward) {
  if (thread.frames.empty()) return nullptr;
  // Of a call that a rule has decided meanwhile the frame knows the row.
  const Frame& own = thread.frames.back();
  if (own.kind == Frame::Kind::Dispatched && own.call.site != report::kNone) return &own;
  for (auto frame = thread.frames.rbegin(); frame != thread.frames.rend(); ++frame) {
    if (frame->kind == Frame::Kind::Backward) {
      backward = true;
      return &*frame;
    }
    if (frame->shown) return &*frame;
  }
  return nullptr;
}

bool is_finite_in_float32(const CheckedCall& call) {
  if (!evidence::may_rerun(*call.op, call.arguments)) return false;
  const auto results = evidence::rerun(*call.op, call.arguments, evidence::in_float32);
  return results && std::none_of(results->begin(), results->end(), [](const c10::IValue& value) {
           return evidence::not_finite(value).any();
         });
}

// Its number.
std::size_t add_candidate(const Thread& thread, Nonfinite made) {
  if (const Frame* row = row_of(thread, made.backward)) {
    const std::lock_guard guard(all().mutex);
    if (row->call.site < all().sites.size()) made.site = all().sites[row->call.site];
  }
  const std::lock_guard guard(finder().mutex);
  auto& candidates = finder().search.candidates;
  if (candidates.size() < kMostCandidates) candidates.push_back(std::move(made));
  return candidates.size();
}

std::size_t new_candidate(const Thread& thread, const CheckedCall& call, const at::Tensor& result,
                          const evidence::NotFinite& found) {
  Nonfinite made;
  made.inner = call.op->handle.schema().name();
  made.nan = found.nan;
  made.dtype = c10::toString(result.scalar_type());
  {
    const evidence::OutOfSight out_of_sight;
    if (call.op->written.empty()) {
      made.finite_in_float32 = is_finite_in_float32(call);
      for (const at::Tensor& tensor : tensors_in(call.arguments)) {
        if (tensor.defined() && tensor.is_floating_point() && made.given.size() < kMostGiven)
          made.given.push_back(given(tensor));
      }
    }
  }
  return add_candidate(thread, std::move(made));
}

// A gradient that arrives at a weight is what the step is about.
void Finder::node_begins(const at::RecordFunction& node) {
  if (std::string_view(node.name()).find("AccumulateGrad") != std::string_view::npos)
    reach_by(tensors_in(node.inputs()));
}

std::unique_ptr<watch::ProbedCall> Finder::begins(const Thread&, const at::RecordFunction& call) {
  const evidence::Op* op = evidence::op_of(call);
  if (op == nullptr || op->composite || op->hands_on) return nullptr;
  auto checked = std::make_unique<CheckedCall>();
  checked->op = op;
  const auto inputs = call.inputs();
  checked->arguments.assign(inputs.begin(), inputs.end());
  for (const std::size_t i : op->written) {
    if (i >= inputs.size()) continue;
    const auto written = tensors_in(inputs.slice(i, 1));
    const std::size_t candidate = first_candidate(written);
    if (candidate != 0) checked->candidate = candidate;
    bool known = false;
    {
      const std::lock_guard guard(finder().mutex);
      known = std::any_of(written.begin(), written.end(),
                          [](const at::Tensor& tensor) { return taint_of(tensor).tainted; });
    }
    if (known) checked->before.add(evidence::not_finite(inputs[i]));
  }
  return checked;
}

void Finder::ends(const Thread& thread, const at::RecordFunction& call, watch::ProbedCall& kept) {
  auto& checked = static_cast<CheckedCall&>(kept);
  const std::string_view name = checked.op->handle.schema().name();
  const auto inputs = tensors_in(checked.arguments);
  // A number that leaves torch, and the loss.
  const bool leaves =
      name == "aten::_local_scalar_dense" && !inputs.empty() && inputs.front().is_floating_point();
  if (leaves || evidence::begins_backward(*checked.op, inputs)) return reach_by(inputs);
  auto results = tensors_in(call.outputs());
  if (results.empty()) {  // a fused step of an optimizer returns nothing
    for (const std::size_t i : checked.op->written) {
      if (i >= checked.arguments.size()) continue;
      for (const at::Tensor& one :
           tensors_in(c10::ArrayRef<c10::IValue>(checked.arguments).slice(i, 1)))
        results.push_back(one);
    }
  }
  for (const at::Tensor& result : results) {
    const evidence::NotFinite found = evidence::not_finite(result);
    if (!found.any()) {
      // Of a view others may still hold what is not finite.
      if (result.defined() && result.has_storage() &&
          result.storage().nbytes() == static_cast<std::size_t>(result.numel()) * result.itemsize())
        clean(result);
      continue;
    }
    std::size_t candidate = first_candidate(inputs);
    if (checked.candidate != 0) candidate = checked.candidate;
    if (candidate == 0) {
      evidence::NotFinite given = checked.before;
      for (std::size_t i = 0; i < checked.arguments.size(); ++i) {
        const bool written = std::find(checked.op->written.begin(), checked.op->written.end(), i) !=
                             checked.op->written.end();
        if (!written) given.add(evidence::not_finite(checked.arguments[i]));
      }
      if (found.beyond(given)) candidate = new_candidate(thread, checked, result, found);
    }
    taint(result, candidate);
    if (result.is_leaf() && result.requires_grad()) reach_by({result});
  }
}

void Finder::casts(const at::Tensor& source, const at::Tensor& result) {
  std::size_t candidate = first_candidate({source});
  if (candidate == 0 && evidence::not_finite(result).beyond(evidence::not_finite(source))) {
    Nonfinite made;
    made.inner = "cast";
    made.dtype = c10::toString(result.scalar_type());
    made.finite_in_float32 = true;
    {
      const evidence::OutOfSight out_of_sight;
      made.given.push_back(given(source));
    }
    candidate = add_candidate(watch::this_thread(), std::move(made));
  }
  if (candidate == 0) return;
  taint(result, candidate);
  if (innermost != nullptr && innermost->candidate == 0) innermost->candidate = candidate;
}

}  // namespace

void start_finding() {
  evidence::forget_kernels();
  watch::set_probe(finder());
  finder().step.store(watch::begin_step());
}

std::unique_ptr<Nonfinite> stop_finding(const std::vector<at::Tensor>& returned) {
  for (const at::Tensor& tensor : returned) {
    try {
      reach_by({tensor});
    } catch (const std::exception&) {  // numbers that torch cannot look at are no NaN that we know
    }
  }
  watch::end_step(finder().step.exchange(0));
  watch::remove_probe(finder());
  Search search;
  {
    const std::lock_guard guard(finder().mutex);
    search = std::exchange(finder().search, {});
  }
  if (!search.looked) {  // nothing came out of the step: what is still there counts
    search.taints.for_each_living([&](const Taint& taint) {
      if (taint.candidate != 0) search.reached.insert(taint.candidate);
    });
  }
  if (search.reached.empty() && search.spoiled) search.reached.insert(1);
  if (search.reached.empty() || *search.reached.begin() > search.candidates.size()) return nullptr;
  return std::make_unique<Nonfinite>(search.candidates[*search.reached.begin() - 1]);
}

}  // namespace habana_mp::probe
