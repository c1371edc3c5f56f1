#include "probe/nonfinite.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/op_schema.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "call/int8_call.h"
#include "cast/by_memory.h"
#include "cast/tensors.h"
#include "evidence/finite.h"
#include "evidence/loss_scale.h"
#include "evidence/rerun.h"
#include "watch/call_stack.h"
#include "watch/observatory.h"
#include "watch/step_threads.h"

namespace habana_mp::probe {
namespace {

using watch::all;
using watch::Frame;
using watch::Thread;

constexpr std::size_t kMostKept = 1 << 12;
constexpr std::size_t kMostGiven = 4;

// Where numbers in memory that are not finite come from: the number of the candidate that made
// them, or else of the one that took them in from outside. 0: no such one is known.
struct Taint {
  std::size_t maker = 0;
  std::size_t taker = 0;

  bool any() const { return maker != 0 || taker != 0; }
};

// The number of a candidate is its place + 1.
using Candidates = std::vector<Nonfinite>;

struct Search {
  Candidates makers, takers;
  std::set<std::size_t> reached_makers, reached_takers;
  bool looked = false;  // something was there to be reached: a gradient, a weight, a number
  std::optional<Nonfinite> spoiled;  // and it was not finite, by nobody knows what
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
  void casts_back(report::SiteId site, const at::Tensor& source, const at::Tensor& result) override;
  void node_begins(const at::RecordFunction& node) override;

  ForkSafeMutex mutex;
  Search search;
  std::atomic<std::uint64_t> step{0};
  std::atomic<double> loss_scale{1};  // of the last loss
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
  Taint known;
  evidence::NotFinite before;
  CheckedCall* outer;
};

thread_local CheckedCall* checking = nullptr;

CheckedCall::CheckedCall() : outer(std::exchange(checking, this)) {}
CheckedCall::~CheckedCall() { checking = outer; }

// With the lock.
Taint taint_of(const at::Tensor& tensor) {
  const Taint* known = finder().search.taints.find(tensor);
  return known == nullptr ? Taint{} : *known;
}

// The first maker, and the first taker.
Taint taint_of(c10::ArrayRef<at::Tensor> tensors) {
  const auto earlier = [](std::size_t& first, std::size_t one) {
    if (one != 0 && (first == 0 || one < first)) first = one;
  };
  const std::lock_guard guard(finder().mutex);
  Taint first;
  for (const at::Tensor& tensor : tensors) {
    const Taint one = taint_of(tensor);
    earlier(first.maker, one.maker);
    earlier(first.taker, one.taker);
  }
  return first;
}

void taint(const at::Tensor& tensor, const Taint& from) {
  ByMemory<Taint>::Gone gone;
  const std::lock_guard guard(finder().mutex);
  if (Taint* made = finder().search.taints.get(tensor)) *made = from;
  gone = finder().search.taints.take_expired();
}

void clean(const at::Tensor& tensor) {
  const std::lock_guard guard(finder().mutex);
  if (Taint* known = finder().search.taints.find(tensor)) *known = {};
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

// What the step is about.
enum class Goal {
  Trains,  // a loss or a gradient: no infinity is meant there
  Leaves,  // a result, a weight or a number of Python: infinities that no op has made may be meant
};

// Where it is not known what the numbers come from, it is the first maker that there is at the
// end, unless it is known of others.
void reach_by(c10::ArrayRef<at::Tensor> tensors, Goal goal) {
  evidence::NotFinite found;
  const at::Tensor* spoiled = nullptr;
  for (const at::Tensor& tensor : tensors) {
    const evidence::NotFinite one = evidence::not_finite(tensor);
    if (one.any()) spoiled = &tensor;
    found.add(one);
  }
  const Taint from = spoiled == nullptr ? Taint{} : taint_of(tensors);
  const std::lock_guard guard(finder().mutex);
  Search& search = finder().search;
  search.looked = true;
  if (spoiled == nullptr) return;
  if (from.maker != 0) {
    search.reached_makers.insert(from.maker);
  } else if (from.taker != 0) {
    const bool may_mean_it = search.takers[from.taker - 1].from_constants || !found.above;
    if (goal == Goal::Trains || found.nan || !may_mean_it) search.reached_takers.insert(from.taker);
  } else if (!search.spoiled && (goal == Goal::Trains || found.nan)) {
    search.spoiled.emplace();
    search.spoiled->nan = found.nan;
    search.spoiled->dtype = c10::toString(spoiled->scalar_type());
    search.spoiled->from_outside = true;
  }
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

// `given`: what is not finite in its inputs, which may be so in float32 too.
void run_in_float32(Nonfinite& made, const CheckedCall& call, const evidence::NotFinite& given) {
  if (!evidence::may_rerun(*call.op, call.arguments)) return;
  const auto results = evidence::rerun(*call.op, call.arguments, evidence::in_float32);
  if (!results) return;
  made.ran_in_float32 = true;
  made.finite_in_float32 = std::ranges::none_of(*results, [&](const c10::IValue& value) {
    return evidence::not_finite(value).beyond(given);
  });
  for (const at::Tensor& result : tensors_in(*results))
    made.largest_in_float32 = std::max(made.largest_in_float32, evidence::largest_finite(result));
}

// Of what has changed its dtype alone, in a call or in a cast of ours.
void look_at_cast(Nonfinite& made, const at::Tensor& source) {
  made.casts = true;
  made.finite_in_float32 = true;
  made.largest_in_float32 = evidence::largest_finite(source);
}

report::Site site_at(report::SiteId id) {
  const std::lock_guard guard(all().mutex);
  return id < all().sites.size() ? all().sites[id] : report::Site{};
}

// Its number.
std::size_t add_candidate(const Thread& thread, Candidates Search::* kind, Nonfinite made) {
  if (!made.casts || !made.backward) {
    if (const Frame* row = row_of(thread, made.backward)) made.site = site_at(row->call.site);
  }
  if (made.backward) made.loss_scale = finder().loss_scale.load();
  const std::lock_guard guard(finder().mutex);
  Candidates& candidates = finder().search.*kind;
  if (candidates.size() < kMostKept) candidates.push_back(std::move(made));
  return candidates.size();
}

// An op that is made of others is none of them in 8 bits: it is looked at itself.
bool may_be_in_8_bits(const evidence::Op& op) {
  return int8_op(overload_of(op.handle.schema())) != Int8Op::None;
}

bool is_in_8_bits(const CheckedCall& call) { return report::is_int8(site_at(call.site).outcome); }

// Of a call that makes numbers which are not finite, or, where its result has none but those that
// it is given, takes them in, unless another one has (`known`).
Taint taken_or_made(const Thread& thread, const CheckedCall& call, const at::Tensor& result,
                    const evidence::NotFinite& found, const Taint& known) {
  Nonfinite made;
  evidence::NotFinite numbers, before = call.before;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::IValue& argument = call.arguments[i];
    if (argument.isDouble()) {
      const evidence::NotFinite number = evidence::not_finite(argument);
      numbers.add(number);
      if (number.any())
        made.given.push_back({"number", {}, argument.toDouble(), argument.toDouble()});
    } else if (std::ranges::find(call.op->written, i) == call.op->written.end()) {
      before.add(evidence::not_finite(argument));
    }
  }
  made.from_constants = !before.any();
  before.add(numbers);
  if (before.any() && is_in_8_bits(call)) before.nan = true;  // an infinity has no scale
  const bool makes = found.beyond(before);
  if (!makes && known.taker != 0) return known;
  made.inner = call.op->handle.schema().name();
  made.nan = found.nan;
  made.dtype = c10::toString(result.scalar_type());
  {
    const evidence::OutOfSight out_of_sight;
    const bool writes = !call.op->written.empty();
    const auto sources = tensors_in(call.arguments);
    if (makes && call.op->moves && !writes && !sources.empty() &&
        sources.front().is_floating_point() &&
        sources.front().scalar_type() != result.scalar_type()) {
      look_at_cast(made, sources.front());
    } else if (makes && !writes) {
      run_in_float32(made, call, before);
    }
    made.from_outside = before.any() && !made.finite_in_float32;
    if (!writes) {
      for (const at::Tensor& tensor : tensors_in(call.arguments)) {
        if (tensor.defined() && tensor.is_floating_point() && made.given.size() < kMostGiven)
          made.given.push_back(given(tensor));
      }
    }
  }
  if (makes) return {.maker = add_candidate(thread, &Search::makers, std::move(made))};
  return {.taker = add_candidate(thread, &Search::takers, std::move(made))};
}

// A gradient that arrives at a weight is what the step is about.
void Finder::node_begins(const at::RecordFunction& node) {
  if (std::string_view(node.name()).find("AccumulateGrad") != std::string_view::npos)
    reach_by(tensors_in(node.inputs()), Goal::Trains);
}

std::unique_ptr<watch::ProbedCall> Finder::begins(const Thread&, const at::RecordFunction& call) {
  const evidence::Op* op = evidence::op_of(call);
  if (op == nullptr || op->hands_on || (op->composite && !may_be_in_8_bits(*op))) return nullptr;
  auto checked = std::make_unique<CheckedCall>();
  checked->op = op;
  const auto inputs = call.inputs();
  checked->arguments.assign(inputs.begin(), inputs.end());
  // What `out` was given may hold anything before.
  const bool reads = op->handle.schema().name().ends_with('_') && !op->overwrites;
  for (const std::size_t i : op->written) {
    if (i >= inputs.size()) continue;
    const Taint known = taint_of(tensors_in(inputs.slice(i, 1)));
    if (known.any()) checked->known = known;
    if (known.any() || reads) checked->before.add(evidence::not_finite(inputs[i]));
  }
  return checked;
}

void Finder::ends(const Thread& thread, const at::RecordFunction& call, watch::ProbedCall& kept) {
  auto& checked = static_cast<CheckedCall&>(kept);
  if (checked.op->composite && !is_in_8_bits(checked)) return;
  const std::string_view name = checked.op->handle.schema().name();
  const auto inputs = tensors_in(checked.arguments);
  // A number that leaves torch, and the loss.
  const bool leaves =
      name == "aten::_local_scalar_dense" && !inputs.empty() && inputs.front().is_floating_point();
  if (leaves) return reach_by(inputs, Goal::Leaves);
  if (evidence::begins_backward(*checked.op, inputs)) {
    loss_scale.store(evidence::loss_scale(inputs.front()).all);
    return reach_by(inputs, Goal::Trains);
  }
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
    Taint from = checked.known.maker != 0 ? checked.known : taint_of(inputs);
    if (from.maker == 0) from = taken_or_made(thread, checked, result, found, from);
    taint(result, from);
    if (result.is_leaf() && result.requires_grad()) reach_by({result}, Goal::Leaves);
  }
}

void Finder::casts(const at::Tensor& source, const at::Tensor& result) {
  casts_back(report::kNone, source, result);
}

void Finder::casts_back(report::SiteId site, const at::Tensor& source, const at::Tensor& result) {
  Taint from = taint_of({source});
  if (from.maker == 0 && evidence::not_finite(result).beyond(evidence::not_finite(source))) {
    Nonfinite made;
    made.inner = "cast";
    made.dtype = c10::toString(result.scalar_type());
    {
      const evidence::OutOfSight out_of_sight;
      look_at_cast(made, source);
      made.given.push_back(given(source));
    }
    made.backward = site != report::kNone;
    if (made.backward) made.site = site_at(site);
    from.maker = add_candidate(watch::this_thread(), &Search::makers, std::move(made));
  }
  if (!from.any()) return;
  taint(result, from);
  if (checking != nullptr && checking->known.maker == 0) checking->known = from;
}

}  // namespace

void start_finding() {
  evidence::forget_kernels();
  watch::set_probe(finder());
  finder().loss_scale.store(1);
  finder().step.store(watch::begin_step());
}

std::unique_ptr<Nonfinite> stop_finding(const std::vector<at::Tensor>& returned) {
  for (const at::Tensor& tensor : returned) {
    try {
      reach_by({tensor}, Goal::Leaves);
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
      if (taint.maker != 0) search.reached_makers.insert(taint.maker);
    });
  }
  if (search.reached_makers.empty() && search.reached_takers.empty() && search.spoiled) {
    if (search.makers.empty()) return std::make_unique<Nonfinite>(*search.spoiled);
    search.reached_makers.insert(1);
  }
  const bool made = !search.reached_makers.empty();
  const auto& reached = made ? search.reached_makers : search.reached_takers;
  if (reached.empty()) return nullptr;
  return std::make_unique<Nonfinite>(
      (made ? search.makers : search.takers).at(*reached.begin() - 1));
}

}  // namespace habana_mp::probe
