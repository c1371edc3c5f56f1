#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "autocast/call.h"
#include "autocast/catalogue.h"
#include "autocast/notify.h"
#include "autocast/rules.h"
#include "base/fork_safe_mutex.h"
#include "call/errors.h"
#include "cast/numbers.h"
#include "listen/hears.h"
#include "scope/casts_off.h"
#include "scope/regions.h"

namespace habana_mp::autocast {
namespace {

using Stack = torch::jit::Stack;
[[noreturn]] void refuse(const Op& op, const Policy& policy) {
  TORCH_CHECK(false, refusal(op.name, policy.rule_text(policy.resolve_overload(op.name))));
}

// What becomes of a call: it goes on below our key, under a rule or as it is.
struct Plan {
  c10::DispatchKeySet keys;  // for the redispatch
  // torch's own autocast keys of the device, empty where its kernel is to run
  c10::DispatchKeySet left_out{};
  const Scope* scope = nullptr;  // null: nothing of ours rules the call
  OpRule op{{Action::Inputs, DType::Other, false}, Insides::ByRules, false};
  c10::DeviceType device{};
  Seen seen{};
  bool norm = false;
  // A mode of torch.export has the call, and is to see the op after our casts too
  // (habana_mp/_compiled/export.py).
  bool pre_dispatch = false;

  // Whether the rule casts nothing, and no listener wants the call.
  bool casts_nothing() const {
    // It may be cast back, where the device refuses it.
    const bool may_be_refused = norm && device != c10::DeviceType::CPU && may_lack_kernel();
    return (op.rule.action == Action::Inputs && !may_be_refused) ||
           (seen.on_one_device() && habana_mp::casts_nothing(op.rule, seen.dtypes) &&
            !listen::anyone_listens() && !pre_dispatch);
  }
  // Whether the call may fail for want of a kernel of a low dtype (D42).
  bool may_lack_kernel() const {
    return op.watched && ((seen.dtypes & kLowBits) != 0 || is_lower(op.rule.action));
  }
};

// The rule of an op here: inside a compound only what is listed holds, of the lower list only
// products, and the rest of the policy does not (D41).
OpRule rule_here(const Op& op, const Rules& rules) {
  OpRule found = rules.by_op[op.index];
  if (!this_thread.in_compound) return found;
  const bool holds = found.rule.listed && (found.rule.action != Action::Lower || op.product);
  if (!holds) {
    const Action action = op.refuses_mixed ? Action::Promote : Action::Inputs;
    found = {{action, found.rule.low, false}, op.insides, found.watched};
  }
  return found;
}

// `each` takes a function and calls it with each tensor of the call.
template <typename Each>
Plan plan_of(const Op& op, c10::DispatchKeySet keys, const Each& each) {
  static constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);
  Plan plan{.keys = keys & kBelow};
  each(plan.seen);
  const c10::DispatchKeySet excluded = excluded_here();
  const std::size_t device = device_of(plan.seen, excluded);
  if (device == kDeviceCount) return plan;
  const Ruling here = ruling_here(device, excluded);
  if (here.ruler == Ruler::Torch) return plan;  // `keys` has its kernel
  plan.left_out = kDeviceSets[device];
  plan.keys = plan.keys - plan.left_out;
  if (here.ruler == Ruler::Nobody || casts_off(excluded)) return plan;
  plan.op = rule_here(op, *here.scope->rules);
  if (plan.op.does_nothing()) return plan;
  if (is_lower(plan.op.rule.action)) last_lower = &op.name;
  if (plan.op.rule.action == Action::Error) refuse(op, *here.scope->rules->policy);
  plan.scope = here.scope;
  plan.pre_dispatch = keys.has(c10::DispatchKey::PreDispatch);
  plan.device = kDevices[device];
  plan.norm = op.norm;
  return plan;
}

// Nothing inside is cast by itself: a listed op is atomic (D19).
using AtomicGuard = c10::impl::ExcludeDispatchKeyGuard;

// What holds inside an op while it runs.
class InsidesGuard {
 public:
  explicit InsidesGuard(const Plan& plan) {
    switch (plan.op.insides) {
      case Insides::Own:
        atomic_.emplace(kAllKeys);
        break;
      case Insides::Compound:
        compound_.emplace();
        [[fallthrough]];
      case Insides::ByRules:
        uncast_.emplace(plan.keys, plan.left_out);
    }
  }

 private:
  std::optional<AtomicGuard> atomic_;
  std::optional<CompoundGuard> compound_;
  std::optional<UncastRest> uncast_;
};

// The call below our key. After casts an atomic op is dispatched anew, because they may be of
// another kind of tensor; any other would come back to our kernel.
void call_below(const Op& op, const Plan& plan, Stack* stack, bool anew) {
  if (anew && plan.op.insides == Insides::Own) return op.handle.callBoxed(stack);
  op.handle.redispatchBoxed(plan.keys, stack);
}

bool lacks_kernel(const Plan& plan, const std::exception& error) {
  return plan.may_lack_kernel() && lacks_low_kernel(error);
}

NormCall norm_call(const Op& op, const Plan& plan, const Call& call) {
  return {op.name, plan.device, plan.op.rule, call.described(), call.explicit_dtype()};
}

bool are_ordinary(const Call& call) {
  const auto tensors = call.tensors();
  return std::all_of(tensors.begin(), tensors.end(), is_ordinary);
}

void cast_and_call(const Op& op, const Plan& plan, Stack* stack) {
  Call call(op.form, *stack, plan.device);
  Rule rule = plan.op.rule;
  if (is_int8(rule.action) && !call.has_int8_weight(op.int8)) rule.action = Action::Lower;
  Decision decision =
      op.norm ? decide_norm(norm_call(op, plan, call), [&] { return are_ordinary(call); })
              : decide(rule, call.described(), call.explicit_dtype());
  decision.instead_of = instead_of(plan.op.rule.action, decision.cause);
  const bool int8 = is_int8(decision.cause);
  const bool casting = decision.cause != Cause::None && (int8 || call.any_to_cast(decision));
  listen::WatchedCall watched;
  if (listen::anyone_listens()) {
    notify_begin(watched, {op, *plan.scope->rules, call, decision, casting});
  }
  try {
    const bool traced = op.weight_op && (int8 ? call.is_of_traced_int8_weight(op.int8)
                                              : casting && plan.scope->cached &&
                                                    call.is_of_traced_weight(decision));
    if (!traced && (int8 ? call.compute_int8(op.int8, decision, plan.scope->cached)
                         : casting && op.layout != Layout::Plain && plan.scope->cached &&
                               call.compute_packed(op.layout, decision))) {
      return notify_end(watched, call);
    }
    if (traced) {
      call.cast_but_parameters(op.int8, decision, plan.scope->cached);
      return op.weight_op->callBoxed(stack);
    }
    if (casting) call.cast(decision, plan.scope->cached);
    call_below(op, plan, stack, casting || plan.pre_dispatch);
  } catch (const std::exception& error) {
    if (lacks_kernel(plan, error)) watched.abandon();  // it runs in float32
    throw;
  }
  if (casting && call.lends()) {
    call.take_back();
    watched.forget_casts();
    call.cast(decision, /*cached=*/false);
    call_below(op, plan, stack, /*anew=*/true);
  }
  notify_end(watched, call);
}

// The call in float32, where its arguments, as they were given, are on the stack (D42). False where
// there is nothing to cast.
bool call_without_low_kernel(const Op& op, const Plan& plan, Stack* stack) {
  Call call(op.form, *stack, plan.device);
  const Decision decision =
      decide_without_low_kernel(plan.op.rule, call.described(), call.explicit_dtype());
  if (decision.cause == Cause::None) return false;
  const bool may_remember = op.norm && are_ordinary(call);
  const AtomicGuard atomic(kAllKeys);
  listen::WatchedCall watched;
  if (listen::anyone_listens()) {
    notify_begin(watched, {op, *plan.scope->rules, call, decision, call.any_to_cast(decision)});
  }
  call.cast(decision, /*cached=*/false);
  op.handle.callBoxed(stack);
  notify_end(watched, call);
  if (may_remember) remember_refusal(norm_call(op, plan, call));
  return true;
}

// Has `call` run, and where it fails for want of a low kernel, `restore`s the stack, which then
// holds the arguments as they were given, and runs the op in float32.
template <typename CallOp, typename Restore>
void call_with_any_kernel(const Op& op, const Plan& plan, const CallOp& call,
                          const Restore& restore) {
  if (!plan.may_lack_kernel()) return call();
  try {
    call();
  } catch (const std::exception& error) {
    if (!lacks_kernel(plan, error)) throw;
    Stack* stack = restore();
    try {
      if (call_without_low_kernel(op, plan, stack)) return;
    } catch (const std::exception&) {  // the first error is the one to see
    }
    throw;
  }
}

// The kernel of any op.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const Op& op) : op_(op) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) const {
    const auto each = [&](auto& visit) { for_each_tensor(op_.form, *stack, visit); };
    const Plan plan = plan_of(op_, keys, each);
    if (!plan.scope) {
      const UncastRest rest(plan.keys, plan.left_out);
      return op_.handle.redispatchBoxed(plan.keys, stack);
    }
    // A call that fails may leave anything on the stack.
    const std::size_t below = stack->size() - op_.form.count;
    std::vector<c10::IValue> given;
    if (plan.may_lack_kernel()) given.assign(stack->begin() + below, stack->end());
    const auto call = [&] {
      const InsidesGuard insides(plan);
      if (plan.casts_nothing()) return op_.handle.redispatchBoxed(plan.keys, stack);
      cast_and_call(op_, plan, stack);
    };
    call_with_any_kernel(op_, plan, call, [&] {
      stack->resize(below);
      stack->insert(stack->end(), given.begin(), given.end());
      return stack;
    });
  }

 private:
  const Op& op_;
};

// TorchScript puts casts by torch's own lists into the graphs that it runs while autocast is on for
// the CPU, whoever switched it on. In a region of ours they cast nothing.
class ScriptCastKernel final : public c10::OperatorKernel {
 public:
  explicit ScriptCastKernel(const Op& op) : op_(op) {}

  static bool is_for(const Op& op) { return op.name.starts_with("_autocast_to_"); }

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) const {
    const Plan plan =
        plan_of(op_, keys, [&](auto& visit) { for_each_tensor(op_.form, *stack, visit); });
    if (plan.left_out.empty()) return op_.handle.redispatchBoxed(plan.keys, stack);
    torch::jit::drop(stack, op_.form.count - 1u);
  }

 private:
  const Op& op_;
};

// BoxedKernel without an argument stack where nothing is to be cast, which takes most of the time
// of a small op.
template <typename Signature>
class TypedKernel;

template <typename... Args>
class TypedKernel<at::Tensor(Args...)> final : public c10::OperatorKernel {
 public:
  explicit TypedKernel(const Op& op) : op_(op), handle_(op.handle.typed<at::Tensor(Args...)>()) {}

  at::Tensor operator()(c10::DispatchKeySet keys, Args... args) const {
    const auto each = [&](auto& visit) { (for_each_tensor(args, visit), ...); };
    const Plan plan = plan_of(op_, keys, each);
    if (!plan.scope) {
      const UncastRest rest(plan.keys, plan.left_out);
      return handle_.redispatch(plan.keys, std::forward<Args>(args)...);
    }
    at::Tensor result;
    Stack stack;
    const auto fill = [&] {
      stack.clear();
      stack.reserve(sizeof...(Args));
      torch::jit::push(stack, args...);
      return &stack;
    };
    const auto call = [&] {
      const InsidesGuard insides(plan);
      if (plan.casts_nothing()) {
        result = handle_.redispatch(plan.keys, args...);
      } else {
        cast_and_call(op_, plan, fill());
      }
    };
    call_with_any_kernel(op_, plan, call, fill);
    return stack.empty() ? std::move(result) : std::move(stack[0]).toTensor();
  }

 private:
  const Op& op_;
  const c10::TypedOperatorHandle<at::Tensor(Args...)> handle_;
};

template <typename AtenOp>
c10::KernelFunction typed(const Op& op) {
  using Kernel = TypedKernel<typename AtenOp::schema>;
  return c10::KernelFunction::makeFromUnboxedFunctor</*AllowLegacyTypes=*/true, Kernel>(
      std::make_unique<Kernel>(op));
}

c10::KernelFunction kernel_of(const Op& op) {
  if (ScriptCastKernel::is_for(op))
    return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ScriptCastKernel>(op));
  static const std::unordered_map<std::string_view, c10::KernelFunction (*)(const Op&)> fast = {
#define HABANA_MP_TYPED(name) {#name, typed<at::_ops::name>},
#include "autocast/typed_ops.inc"
#undef HABANA_MP_TYPED
  };
  std::string name = op.name;
  std::replace(name.begin(), name.end(), '.', '_');
  if (const auto found = fast.find(name); found != fast.end()) return found->second(op);
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(op));
}

bool casts_in_torch(const Op& op) {
  return std::any_of(kDeviceKeys.begin(), kDeviceKeys.end(),
                     [&](c10::DispatchKey key) { return op.handle.hasKernelForDispatchKey(key); });
}

// Never undone: a call may be in a kernel.
void register_kernel(const Op& op) {
  auto& dispatcher = c10::Dispatcher::singleton();
  // All other ops pass our key by.
  static auto* others = new c10::RegistrationHandleRAII(dispatcher.registerFallback(
      kKey, c10::KernelFunction::makeFallthrough(), "habana_mp: ops without a rule"));
  static_cast<void>(others);
  static auto* kept = new std::deque<c10::RegistrationHandleRAII>;
  kept->push_back(dispatcher.registerImpl(op.handle.operator_name(), kKey, kernel_of(op),
                                          std::nullopt, nullptr, "habana_mp: hmp.autocast"));
}

ForkSafeMutex registering;

}  // namespace

void register_kernels(const Rules& rules) {
  if (rules.registered.load(std::memory_order_acquire)) return;
  const std::lock_guard guard(registering);
  for (Op& op : catalogue().ops) {
    const bool needed = !rules.by_op[op.index].does_nothing();
    if (op.registered || !(needed || casts_in_torch(op) || ScriptCastKernel::is_for(op))) continue;
    register_kernel(op);
    op.registered = true;
  }
  rules.registered.store(true, std::memory_order_release);
}

}  // namespace habana_mp::autocast
