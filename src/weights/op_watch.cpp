#include "weights/op_watch.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/op_schema.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "base/torch_private_python.h"
#include "cast/numbers.h"
#include "weights/weight_cache.h"

namespace habana_mp {
namespace {

// Their schemas do not say that they write. Who waits for a functional collective says by that that
// its target is written.
constexpr std::array<std::string_view, 18> kCollectives = {
    "c10d::broadcast_",
    "c10d::allreduce_",
    "c10d::allreduce_coalesced_",
    "c10d::allgather_",
    "c10d::allgather_coalesced_",
    "c10d::allgather_into_tensor_coalesced_",
    "c10d::_allgather_base_",
    "c10d::reduce_scatter_",
    "c10d::reduce_scatter_tensor_coalesced_",
    "c10d::_reduce_scatter_base_",
    "c10d::reduce_",
    "c10d::gather_",
    "c10d::scatter_",
    "c10d::alltoall_",
    "c10d::alltoall_base_",
    "c10d::recv_",
    "c10d::recv_any_source_",
    "_c10d_functional::wait_tensor",
};

// Of the devices whose weights are cached.
constexpr std::array kAutogradKeys = {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA,
                                      c10::DispatchKey::AutogradXPU, c10::DispatchKey::AutogradHPU,
                                      c10::DispatchKey::AutogradPrivateUse1};

bool is_collective(const c10::OperatorHandle& op) {
  return std::ranges::find(kCollectives, op.operator_name().name) != kCollectives.end();
}

// Whether nothing shows that the op writes. torch's own ops move version counters, but for the
// fused optimizers.
bool may_write_unseen(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  if (name.starts_with("aten::") && !name.starts_with("aten::_fused_")) return false;
  if (is_collective(op)) return true;
  return std::ranges::any_of(op.schema().arguments(), is_written);
}

void collect(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) tensors.push_back(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) collect(item, tensors);
  }
}

std::vector<at::Tensor> written_by(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const bool all = is_collective(op);
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (all || is_written(arguments[i])) {
      collect(torch::jit::peek(stack, i, arguments.size()), tensors);
    }
  }
  return tensors;
}

// Whether a call with these tensors is captured into a graph, which writes only when it is
// replayed. Every copy ends then (habana_mp/_weights.py). Until then its events may not be queried.
bool is_captured(const std::vector<at::Tensor>& tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& tensor) {
    return !tensor.is_cpu() && is_ordinary(tensor) &&
           torch_private::is_capturing(torch_private::current_stream(tensor.device()));
  });
}

// Of a collective that goes on after its call: whether it still does. It may write until its Work
// is complete, or, where nobody waits for that, gone.
WeightCache::GoesOn goes_on(const c10::IValue& result) {
  if (!result.isCustomClass()) return nullptr;
  const auto object = result.toObject()->getSlot(0);
  if (!object.isCapsule()) return nullptr;
  const auto holder = object.toCapsule();
  auto* work = static_cast<c10d::Work*>(holder.get());
  if (work->isCompleted()) return nullptr;
  const c10::weak_intrusive_ptr<torch::CustomClassHolder> weak(holder);
  return [weak, work] {
    const auto alive = weak.lock();
    return alive.defined() && !work->isCompleted();
  };
}

void call_and_notify(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const std::vector<at::Tensor> tensors = written_by(op, *stack);
  // Without a guard: what an op does inside, on threads of its own too, moves version counters. An
  // op that is made of others runs with autograd, as ever: these keys are for its kernel alone.
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  if (is_collective(op) && !is_captured(tensors)) {
    for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size())) {
      const WeightCache::GoesOn writes = goes_on(result);
      if (writes) weight_cache().begin_writes(tensors, writes);
    }
  }
  for (const at::Tensor& tensor : tensors) {
    weight_cache().end_alias(tensor, /*exported=*/false);
  }
}

using Kernels = std::vector<c10::RegistrationHandleRAII>;

// Its mutex is never held while the dispatcher is called, which has a lock of its own.
struct OpWatch {
  ForkSafeMutex mutex;
  Kernels kernels;
  std::optional<c10::RegistrationHandleRAII> listener;
  bool started = false;
  std::vector<c10::OperatorName> noted;
  std::atomic<bool> any_noted = false;
};

OpWatch& here() { return process_wide<OpWatch>(); }

struct Listener final : c10::OpRegistrationListener {
  // An op is defined: under the dispatcher's lock, and before it has kernels, so it is noted.
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    if (!op.hasSchema() || !may_write_unseen(op)) return;
    {
      const std::lock_guard lock(here().mutex);
      here().noted.push_back(op.operator_name());
      here().any_noted = true;
    }
    // Its first call may be before the next copy is made.
    weight_cache().end_all(Ended::Alias);
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

void watch(const c10::OperatorHandle& op, Kernels& kernels) {
  // Who has a kernel here moves the version counters in it.
  if (op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView)) return;
  const auto add = [&](c10::DispatchKey key) {
    kernels.push_back(c10::Dispatcher::singleton().registerImpl(
        op.operator_name(), key, c10::KernelFunction::makeFromBoxedFunction<call_and_notify>(),
        std::nullopt, nullptr, "habana_mp: the weight cache"));
  };
  add(c10::DispatchKey::ADInplaceOrView);
  // An op that is made of others runs before that key is reached, on the key of its device.
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return;
  for (const c10::DispatchKey key : kAutogradKeys) {
    if (!op.hasKernelForDispatchKey(key)) add(key);
  }
}

void watch_noted() {
  if (!here().any_noted.load(std::memory_order_acquire)) return;
  std::vector<c10::OperatorName> names;
  {
    const std::lock_guard lock(here().mutex);
    names.swap(here().noted);
  }
  Kernels kernels;
  for (const c10::OperatorName& name : names) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op) watch(*op, kernels);
  }
  const std::lock_guard lock(here().mutex);
  std::move(kernels.begin(), kernels.end(), std::back_inserter(here().kernels));
  here().any_noted = !here().noted.empty();
}

}  // namespace

void watch_ops() {
  {
    const std::lock_guard lock(here().mutex);
    if (std::exchange(here().started, true)) return;
  }
  // It is called for the ops that are there, too.
  auto listener =
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>());
  {
    const std::lock_guard lock(here().mutex);
    here().listener.emplace(std::move(listener));
  }
  weight_cache().before_look = watch_noted;
}

void unwatch_ops() {
  weight_cache().before_look = nullptr;
  Kernels kernels;
  std::optional<c10::RegistrationHandleRAII> listener;
  {
    const std::lock_guard lock(here().mutex);
    here().started = false;
    listener.swap(here().listener);
    kernels.swap(here().kernels);
  }
  listener.reset();
  kernels.clear();
  const std::lock_guard lock(here().mutex);
  here().noted.clear();  // the next listener is called for all of them again
}

}  // namespace habana_mp
