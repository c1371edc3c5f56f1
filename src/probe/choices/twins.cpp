#include "probe/choices/twins.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/by_memory.h"
#include "cast/tensors.h"

namespace habana_mp::probe {
namespace {

constexpr std::int64_t kMostNumbers = std::int64_t{1} << 28;  // 1 GiB

struct Entry {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // so nothing else can have its address
  Twins twins;

  std::int64_t size() const { return twins.chosen.numel() + twins.otherwise.numel(); }
};

// By tensor and not by memory: a twin may have other sizes, so a view of it is made by the op that
// made the view.
struct Store {
  ForkSafeMutex mutex;
  std::unordered_map<const c10::TensorImpl*, Entry> entries;
  std::int64_t numbers = 0;
  std::size_t sweep_at = 0;
  std::atomic<bool> some{false};
};

Store& store() { return process_wide<Store>(); }

thread_local bool inside = false;  // a call that is followed

std::optional<Twins> find(const at::Tensor& tensor) {
  const std::lock_guard guard(store().mutex);
  const auto found = store().entries.find(tensor.unsafeGetTensorImpl());
  return found == store().entries.end() ? std::nullopt : std::optional(found->second.twins);
}

Twins view_of(const Twins& base, const at::Tensor& view) {
  const auto part = [&](const at::Tensor& twin) {
    return twin.as_strided(view.sizes(), view.strides(), view.storage_offset());
  };
  return {part(base.chosen), part(base.otherwise), base.step};
}

// With the lock. What is gone is to be freed behind it.
void sweep(std::vector<Entry>& gone) {
  Store& here = store();
  for (auto each = here.entries.begin(); each != here.entries.end();) {
    if (!each->second.tensor.expired()) {
      ++each;
      continue;
    }
    here.numbers -= each->second.size();
    gone.push_back(std::move(each->second));
    each = here.entries.erase(each);
  }
  here.sweep_at = 2 * here.entries.size() + 64;
}

// Whether a view of the tensor is the same view of its twins.
bool lies_as_it_is(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous();
}

// Twins of a tensor that is about to be written to: both as it is.
std::optional<Twins> made_for(const at::Tensor& tensor, const std::shared_ptr<Step>& step) {
  const at::Tensor base = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  if (!evidence::is_readable(base) || !lies_as_it_is(base)) return std::nullopt;
  const at::Tensor numbers = base.detach();
  const auto copy = [&] {
    return numbers.is_floating_point() ? numbers.to(at::kFloat, false, true) : numbers.clone();
  };
  keep_twins(base, {copy(), copy(), step});
  return twins_of(tensor);
}

}  // namespace

bool has_twins() { return store().some.load(std::memory_order_relaxed); }

std::optional<Twins> twins_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !has_twins()) return std::nullopt;
  if (auto own = find(tensor)) return own;
  if (!tensor.is_view()) return std::nullopt;
  const at::Tensor base(tensor._base());
  const auto whole = find(base);
  if (!whole || !lies_as_it_is(base) || !lies_as_it_is(whole->chosen) ||
      !lies_as_it_is(whole->otherwise) || whole->chosen.sizes() != base.sizes() ||
      whole->otherwise.sizes() != base.sizes()) {
    return std::nullopt;
  }
  const evidence::OutOfSight out_of_sight;
  return view_of(*whole, tensor);
}

void keep_twins(const at::Tensor& tensor, const Twins& twins) {
  const evidence::OutOfSight out_of_sight;
  Entry made{
      c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
      {evidence::in_float32(twins.chosen), evidence::in_float32(twins.otherwise), twins.step}};
  std::vector<Entry> gone;  // freed behind the lock
  const std::lock_guard guard(store().mutex);
  Store& here = store();
  if (here.entries.size() >= here.sweep_at) sweep(gone);
  if (here.numbers + made.size() > kMostNumbers) {
    twins.step->lost = true;
    return;
  }
  const c10::TensorImpl* key = tensor.unsafeGetTensorImpl();
  if (const auto known = here.entries.find(key); known != here.entries.end()) {
    here.numbers -= known->second.size();
    gone.push_back(std::move(known->second));
    here.entries.erase(known);
  }
  here.numbers += made.size();
  here.entries.emplace(key, std::move(made));
  here.some = true;
}

void sweep_twins() {
  std::vector<Entry> gone;
  const std::lock_guard guard(store().mutex);
  sweep(gone);
}

void forget_twins() {
  std::unordered_map<const c10::TensorImpl*, Entry> gone;
  const std::lock_guard guard(store().mutex);
  std::swap(gone, store().entries);
  store().numbers = 0;
  store().sweep_at = 0;
  store().some = false;
}

FollowedCall::FollowedCall(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments,
                           const watch::CastTensors& casts, std::shared_ptr<Step> step)
    : op_(op), step_(std::move(step)) {
  const evidence::OutOfSight out_of_sight;
  const auto twins = [&](const at::Tensor& argument, bool written) -> std::optional<Twins> {
    if (auto own = twins_of(argument)) return own;
    if (written) return made_for(argument, step_);
    for (const auto& [source, result] : casts) {
      if (result.is_same(argument)) return twins_of(source);
    }
    return std::nullopt;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool written = std::ranges::find(op.written, i) != op.written.end();
    std::vector<at::Tensor> others;  // what `otherwise` has in place of each
    chosen_.push_back(evidence::with_tensors(arguments[i], [&](const at::Tensor& argument) {
      if (!argument.defined() || torch_private::is_wrapped_number(argument)) {
        return others.emplace_back(argument);
      }
      if (written) written_.push_back(argument);
      if (const auto pair = twins(argument, written)) {
        others.push_back(pair->otherwise);
        memory_.push_back(
            {memory_of(argument), memory_of(pair->chosen), memory_of(pair->otherwise)});
        return pair->chosen;
      }
      if (written) step_->lost = true;  // it would write to memory of the program
      memory_.push_back({nullptr, memory_of(argument), memory_of(argument)});
      return others.emplace_back(evidence::in_float32(argument));
    }));
    std::size_t next = 0;
    otherwise_.push_back(evidence::with_tensors(
        arguments[i], [&](const at::Tensor& /*argument*/) { return others[next++]; }));
  }
  inside = true;
}

FollowedCall::~FollowedCall() { inside = false; }

void FollowedCall::ends(const std::vector<c10::IValue>& results) {
  if (step_->lost) return;
  const auto tensors = tensors_in(results);
  try {
    const evidence::OutOfSight out_of_sight;
    op_.handle.callBoxed(chosen_);
    op_.handle.callBoxed(otherwise_);
  } catch (const std::exception&) {
    step_->lost = true;
    return;
  }
  const auto chosen = tensors_in(chosen_), otherwise = tensors_in(otherwise_);
  if (chosen.size() != tensors.size() || otherwise.size() != tensors.size()) {
    step_->lost = true;
    return;
  }
  // What a later call writes to must be no memory of the program, nor of another twin where the
  // program has two: what is in float32 already is no copy here.
  const auto own = [&](const at::Tensor& twin, const at::Tensor& result) {
    const evidence::OutOfSight out_of_sight;
    const bool shared = std::ranges::any_of(memory_, [&](const Memory& each) {
      const auto* memory = memory_of(twin);
      return (memory == each.chosen || memory == each.otherwise) &&
             (each.program == nullptr || each.program != memory_of(result));
    });
    return shared ? twin.clone() : twin;
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool known = std::ranges::any_of(
        written_, [&](const at::Tensor& each) { return each.is_same(tensors[i]); });
    if (tensors[i].defined() && !known)
      keep_twins(tensors[i], {own(chosen[i], tensors[i]), own(otherwise[i], tensors[i]), step_});
  }
}

std::unique_ptr<FollowedCall> follow(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments,
                                     const watch::CastTensors& casts) {
  if (inside || !has_twins()) return nullptr;
  std::shared_ptr<Step> step;
  const auto look = [&](const at::Tensor& tensor) {
    if (const auto twins = twins_of(tensor)) step = twins->step;
    return tensor;
  };
  for (const auto& [source, result] : casts) look(source);
  for (const c10::IValue& argument : arguments)
    evidence::with_tensors(argument, look);  // also x[i]
  if (step == nullptr || step->lost) return nullptr;
  if (evidence::why_not_again(op, arguments) != report::Unmeasured::None) {
    if (!op.composite) step->lost = true;  // else those that it is made of are followed
    return nullptr;
  }
  return std::make_unique<FollowedCall>(op, arguments, casts, std::move(step));
}

}  // namespace habana_mp::probe
