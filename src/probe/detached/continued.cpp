#include "probe/detached/continued.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/tensors.h"
#include "evidence/differences.h"
#include "evidence/graphs/graph_place.h"
#include "watch/backward_pass.h"
#include "watch/observatory.h"

namespace habana_mp::probe {
namespace {

using report::SiteId;

// Tensors that a site has detached: each keeps the graph before it, and passes without a loss may
// detach without an end.
constexpr std::ptrdiff_t kMostOfSite = 16;

struct Entry {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // so nothing else can have its address
  at::Tensor numbers;  // in our graph, in float32; undefined where a call could not be made again
  report::SiteId detached_by = report::kNone;
  bool loss = false;  // it may be one
};

struct Store {
  ForkSafeMutex mutex;
  std::unordered_map<const c10::TensorImpl*, Entry> entries;
  std::atomic<bool> some{false};
  // Since the last loss: a pass of ours may not run, or does not come to all.
  std::atomic<bool> lost{false}, partly{false};
};

Store& store() { return process_wide<Store>(); }

thread_local bool inside = false;  // a call that is continued

bool has_continued() { return store().some.load(std::memory_order_relaxed); }

bool is_floating(const at::Tensor& tensor) {
  return tensor.defined() && at::isFloatingType(tensor.scalar_type()) &&
         !torch_private::is_wrapped_number(tensor);
}

bool is_made(const at::Tensor& tensor) { return tensor.requires_grad() && !tensor.is_leaf(); }

bool is_detach(const evidence::Op& op) { return op.handle.schema().name() == "aten::detach"; }

// Nothing where it is not behind something detached; undefined where that is not known.
std::optional<at::Tensor> continued(const at::Tensor& tensor) {
  if (!tensor.defined() || !has_continued()) return std::nullopt;
  const std::lock_guard guard(store().mutex);
  const auto found = store().entries.find(tensor.unsafeGetTensorImpl());
  return found == store().entries.end() ? std::nullopt : std::optional(found->second.numbers);
}

// With the lock. What goes is to be freed behind it.
template <typename Goes>
void take(std::vector<Entry>& gone, const Goes& goes) {
  auto& entries = store().entries;
  for (auto each = entries.begin(); each != entries.end();) {
    if (!goes(each->second)) {
      ++each;
      continue;
    }
    gone.push_back(std::move(each->second));
    each = entries.erase(each);
  }
  store().some = !entries.empty();
}

// `detached_by`: the site that has ended a graph of the program here, kNone where none has.
void keep(const at::Tensor& tensor, at::Tensor numbers, SiteId detached_by) {
  Entry made{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), std::move(numbers),
             detached_by, tensor.numel() == 1 && tensor.requires_grad()};
  std::vector<Entry> gone;  // freed behind the lock
  const std::lock_guard guard(store().mutex);
  Store& here = store();
  if (detached_by != report::kNone) {
    take(gone, [](const Entry& each) { return each.tensor.expired(); });
    const auto of_site = std::ranges::count_if(here.entries, [&](const auto& each) {
      return each.second.detached_by == detached_by && each.second.numbers.defined();
    });
    if (of_site >= kMostOfSite) gone.push_back({made.tensor, std::exchange(made.numbers, {})});
  }
  const c10::TensorImpl* key = tensor.unsafeGetTensorImpl();
  std::swap(here.entries.try_emplace(key, made.tensor, at::Tensor()).first->second, made);
  gone.push_back(std::move(made));
  here.some = true;
}

// With autograd, and seen by nobody.
class InOurGraph {
  const evidence::OutOfSight out_of_sight_;
  const at::AutoGradMode autograd_{true};
};

void tell_lost(std::uint32_t loss) {
  const std::lock_guard guard(watch::all().mutex);
  watch::for_listeners([loss](report::Listener& listener) { listener.detached(loss); });
}

bool run_backward(const at::Tensor& numbers, const at::Tensor& gradient) {
  const Aside aside;
  return numbers.defined() && evidence::GraphPlace(numbers).run_backward(gradient.to(at::kFloat));
}

// The backward pass of a loss begins. `numbers`: where the loss is behind something detached.
void end_step(const std::optional<at::Tensor>& numbers, const at::Tensor& gradient) {
  const bool lost = store().lost.exchange(false), partly = store().partly.exchange(false);
  if (numbers) {
    watch::enter_node();  // a part of that pass
    const std::uint32_t loss = watch::backward_pass().loss;
    const bool ran = run_backward(lost ? at::Tensor() : *numbers, gradient);
    watch::leave_node();
    if (!ran || partly) tell_lost(loss);
  }
  std::vector<at::Tensor> gone;  // freed behind the lock
  const std::lock_guard guard(store().mutex);
  for (auto& [tensor, each] : store().entries) {
    if (!each.loss) gone.push_back(std::exchange(each.numbers, {}));
  }
}

}  // namespace

bool may_be_continued(const at::RecordFunction& call) {
  return has_continued() || !c10::GradMode::is_enabled() ||
         std::string_view(call.name()) == "aten::detach" ||
         std::ranges::any_of(tensors_in(call.inputs()), [](const at::Tensor& tensor) {
           return is_floating(tensor) && !tensor.requires_grad() &&
                  evidence::lies_in_result(tensor);
         });
}

ContinuedCall::ContinuedCall(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments,
                             const watch::CastTensors& casts, bool again, bool detaches)
    : op_(op),
      arguments_(arguments.begin(), arguments.end()),
      casts_(casts),
      again_(again),
      detaches_(detaches) {
  inside = true;
}

ContinuedCall::~ContinuedCall() { inside = false; }

std::unique_ptr<ContinuedCall> continue_behind(const evidence::Op& op,
                                               c10::ArrayRef<c10::IValue> arguments,
                                               const watch::CastTensors& casts, bool function) {
  if (inside) return nullptr;
  const bool detaches = !function && (is_detach(op) || !c10::GradMode::is_enabled());
  bool behind = false, ends_graph = false;
  const auto look = [&](const at::Tensor& tensor) {
    if (!is_floating(tensor)) return tensor;
    ends_graph = ends_graph || (detaches && is_made(tensor));
    behind = behind || ends_graph || continued(tensor).has_value() ||
             (!function && !tensor.requires_grad() && evidence::lies_in_result(tensor));
    return tensor;
  };
  for (const auto& [source, result] : casts) look(source);
  for (const c10::IValue& argument : arguments) evidence::with_tensors(argument, look);
  if (!behind) return nullptr;
  const bool again = evidence::why_not_again(op, arguments) == report::Unmeasured::None;
  if (!again && op.composite) return nullptr;  // those that it is made of are continued
  return std::make_unique<ContinuedCall>(op, arguments, casts, again && !function, ends_graph);
}

bool ContinuedCall::run(c10::ArrayRef<at::Tensor> results) {
  if (!again_) return false;
  const bool constant = std::ranges::none_of(
      results, [](const at::Tensor& each) { return each.defined() && each.requires_grad(); });
  bool known = true;
  const auto in_our_graph = [&](const at::Tensor& argument) {
    if (!is_floating(argument)) return argument;
    at::Tensor given = argument;
    for (const auto& [source, result] : casts_) {
      if (result.is_same(argument)) given = source;
    }
    at::Tensor numbers = given.detach();
    if (constant && is_made(given)) numbers = given;
    const auto other = continued(given);
    // By .data, which is seen by nobody: the graph before it is not known.
    known = known && (other || given.requires_grad() || !evidence::lies_in_result(given));
    if (!known) return argument;
    if (other) {
      known = known && other->defined();
      if (!known) return argument;
      // No gradient of the program comes to it in either way.
      numbers = numbers.requires_grad() ? numbers + (*other - other->detach()) : *other;
    }
    return numbers.to(at::kFloat);
  };
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const bool written = std::ranges::find(op_.written, i) != op_.written.end();
    stack_.push_back(evidence::with_tensors(arguments_[i], [&](const at::Tensor& argument) {
      if (!written || !argument.defined()) return in_our_graph(argument);
      // Only what is beside the result, such as the statistics of a norm.
      known = known && std::ranges::none_of(
                           results, [&](const at::Tensor& each) { return each.is_same(argument); });
      return known ? argument.detach().clone() : argument;
    }));
  }
  if (!known) return false;
  if (!is_detach(op_)) op_.handle.callBoxed(stack_);
  return true;
}

void ContinuedCall::ends(const std::vector<c10::IValue>& results, SiteId site) {
  const auto made = tensors_in(results);
  c10::SmallVector<at::Tensor, 8> numbers;
  try {
    const InOurGraph in_our_graph;
    if (run(made)) numbers = tensors_in(stack_);
  } catch (const std::exception&) {
    numbers.clear();
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!is_floating(made[i])) continue;
    const bool fits = made.size() == numbers.size() && numbers[i].defined() &&
                      numbers[i].sizes() == made[i].sizes();
    if (!fits) {
      keep(made[i], {}, report::kNone);
    } else if (numbers[i].requires_grad()) {
      const InOurGraph in_our_graph;
      keep(made[i], numbers[i].to(at::kFloat), detaches_ ? site : report::kNone);
    }
  }
}

void note_saved_by_hooks() { store().lost = true; }

void note_gradients_of_gradients() { store().partly = true; }

void continue_loss(const at::Tensor& loss) {
  if (!has_continued() || loss.is_leaf()) return;
  struct Once {
    std::optional<at::Tensor> numbers;
    bool done = false;
  };
  const auto once = std::make_shared<Once>(Once{continued(loss)});
  loss.register_hook([once](const at::Tensor& gradient) {
    // With create_graph it is of something that the loss is made of.
    if (c10::GradMode::is_enabled() || std::exchange(once->done, true)) return;
    end_step(std::exchange(once->numbers, std::nullopt), gradient);
  });
}

void continue_output(const at::Tensor& output, const at::Tensor& gradient) {
  const auto numbers = continued(output);
  if (!numbers) return;
  const bool ran = run_backward(store().lost ? at::Tensor() : *numbers, gradient);
  if (!ran || store().partly) tell_lost(report::kOutputs);
}

void forget_continued() {
  std::vector<Entry> gone;
  const std::lock_guard guard(store().mutex);
  take(gone, [](const Entry&) { return true; });
  store().lost = store().partly = false;
}

}  // namespace habana_mp::probe
