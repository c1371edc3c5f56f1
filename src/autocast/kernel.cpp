#include "autocast/kernel.h"

#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "policy/names.h"
#include "report/listening.h"
#include "autocast/call.h"
#include "autocast/tell.h"
#include "scope/regions.h"
#include "scope/casts_off.h"
#include "cast/numbers.h"

namespace habana_mp::autocast {
namespace {

using Stack = torch::jit::Stack;
// Every op that a policy may name, in one order for the whole process.
struct Catalogue {
  std::deque<Op> ops;  // kernels keep references
  std::unordered_map<std::string, std::vector<std::size_t>>
      by_name;  // by each name that decides it

  Catalogue() {
    constexpr std::string_view kNamespace = "aten::";
    auto& dispatcher = c10::Dispatcher::singleton();
    std::vector<c10::OperatorName> names = dispatcher.getAllOpNames();
    std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
      return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
    });
    std::vector<std::string> spellings;
    std::string spelled_for;
    for (const c10::OperatorName& name : names) {
      if (!name.name.starts_with(kNamespace)) continue;
      const auto handle = dispatcher.findSchema(name);
      if (!handle.has_value()) continue;
      std::optional<Form> form = form_of(handle->schema());
      if (!form) continue;
      const std::string base = name.name.substr(kNamespace.size());
      if (base != spelled_for) {
        spelled_for = base;
        spellings.clear();
        for (const std::vector<std::string>& level : dispatched_candidates(base)) {
          spellings.insert(spellings.end(), level.begin(), level.end());
        }
      }
      std::string full = name.overload_name.empty() ? base : base + "." + name.overload_name;
      for (const std::string& spelling : spellings) by_name[spelling].push_back(ops.size());
      if (!name.overload_name.empty()) by_name[full].push_back(ops.size());
      ops.push_back({*handle, std::move(full), std::move(*form), ops.size()});
    }
  }
};

Catalogue& catalogue() {
  static auto* all = new Catalogue;  // the dispatcher keeps our kernels to the end
  return *all;
}

[[noreturn]] void raise_unsafe(const Op& op, const Policy& policy) {  // D31, F190
  TORCH_CHECK(!op.name.starts_with("binary_cross_entropy"),
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast.\nThe policy in force (",
              policy.name(), ") refuses ", op.name,
              " because its backward can leave the range of the lower precision. Use "
              "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe, or put the "
              "call in hmp.disable_casts().");
  TORCH_CHECK(false, "The policy in force (", policy.name(), ") lists ", op.name,
              " as an error: it is not to be called where casts are on (hmp.disable_casts() "
              "switches them off).");
}

// What becomes of a call: it goes on below our key, under a rule or as it is.
struct Course {
  c10::DispatchKeySet keys;        // for the redispatch
  c10::DispatchKeySet left_out{};  // torch's own autocast, if it is none of it
  const Scope* scope = nullptr;    // null: as it is
  Rule rule{};
  c10::DeviceType device{};
  Seen seen{};
  // A mode of torch.export has the call, and is to see the op after our casts too (_export.py).
  bool pre_dispatch = false;

  // Whether the rule casts nothing, and nobody wants to hear of it.
  bool settled() const {
    return seen.on_one_device() && habana_mp::settled(rule, seen.dtypes) &&
           !report::anyone_listens() && !pre_dispatch;
  }
};

// `each` calls what it is given with each tensor of the call.
template <typename Each>
Course course_of(const Op& op, c10::DispatchKeySet keys, const Each& each) {
  static constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);
  Course course{.keys = keys & kBelow};
  each(course.seen);
  const c10::DispatchKeySet excluded = excluded_here();
  const std::size_t device = device_of(course.seen, excluded);
  if (device == kDeviceCount) return course;
  const Here here = scope_here(device, excluded);
  if (here.whose == Whose::Torch) return course;  // `keys` has its kernel
  course.left_out = kDeviceSets[device];
  course.keys = course.keys - course.left_out;
  if (here.whose == Whose::Nobody || casts_off(excluded)) return course;
  course.rule = here.scope->rules->by_op[op.index];
  if (course.rule.action == Action::Inputs) return course;
  if (course.rule.action == Action::Error) raise_unsafe(op, *here.scope->rules->policy);
  course.scope = here.scope;
  course.pre_dispatch = keys.has(c10::DispatchKey::PreDispatch);
  course.device = kDevices[device];
  return course;
}

// A listed op is atomic: nothing inside it is cast by itself (D19).
using Inside = c10::impl::ExcludeDispatchKeyGuard;

void cast_and_call(const Op& op, const Course& course, Stack* stack) {
  Call call(op.form, *stack, course.device);
  const Decision decision = decide(course.rule, call.described(), call.explicit_dtype());
  const bool casting = decision.cause != Cause::None && call.any_to_cast(decision);
  watch::Watch watch;
  if (report::anyone_listens()) {
    log_call(op, *course.scope->rules->policy, call, decision, casting);
    watch_call(watch, op, *course.scope->rules, call, decision);
  }
  if (!casting) {
    course.pre_dispatch ? op.handle.callBoxed(stack)
                        : op.handle.redispatchBoxed(course.keys, stack);
    return end_watch(watch, call);
  }
  call.cast(decision, course.scope->cached);
  op.handle.callBoxed(stack);
  if (call.gave_away_copy()) {
    call.take_back();
    watch.forget_casts();
    call.cast(decision, /*cached=*/false);
    op.handle.callBoxed(stack);
  }
  end_watch(watch, call);
}

// Serves any op.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const Op& op) : op_(op) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) const {
    const auto each = [&](auto& visit) { for_each_tensor(op_.form, *stack, visit); };
    const Course course = course_of(op_, keys, each);
    if (!course.scope) {
      const UncastRest rest(course.keys, course.left_out);
      return op_.handle.redispatchBoxed(course.keys, stack);
    }
    const Inside inside(kAllKeys);
    if (course.settled()) return op_.handle.redispatchBoxed(course.keys, stack);
    cast_and_call(op_, course, stack);
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
    const Course course =
        course_of(op_, keys, [&](auto& visit) { for_each_tensor(op_.form, *stack, visit); });
    if (course.left_out.empty()) return op_.handle.redispatchBoxed(course.keys, stack);
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
    const Course course = course_of(op_, keys, each);
    if (!course.scope) {
      const UncastRest rest(course.keys, course.left_out);
      return handle_.redispatch(course.keys, std::forward<Args>(args)...);
    }
    const Inside inside(kAllKeys);
    if (course.settled()) return handle_.redispatch(course.keys, std::forward<Args>(args)...);
    Stack stack;
    stack.reserve(sizeof...(Args));
    torch::jit::push(stack, std::forward<Args>(args)...);
    cast_and_call(op_, course, &stack);
    return std::move(stack[0]).toTensor();
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

std::mutex serving;

}  // namespace

std::shared_ptr<const Rules> compile(std::shared_ptr<const Policy> policy) {
  const Catalogue& all = catalogue();
  auto rules = std::make_shared<Rules>();
  rules->by_op.assign(all.ops.size(), Rule{Action::Inputs, policy->low(), false});
  const Lists& lists = policy->lists();
  for (const auto* names : {&lists.lower, &lists.fp32, &lists.promote, &lists.error}) {
    for (const ListedName& listed : *names) {
      const auto found = all.by_name.find(listed.name);
      if (found == all.by_name.end()) continue;
      for (const std::size_t index : found->second) {
        rules->by_op[index] = policy->resolve_overload(all.ops[index].name).rule;
      }
    }
  }
  rules->context = watch::context_of(*policy, report::FrontEnd::Autocast);
  rules->policy = std::move(policy);
  return rules;
}

void serve(const Rules& rules) {
  if (rules.served.load(std::memory_order_acquire)) return;
  const std::lock_guard guard(serving);
  for (Op& op : catalogue().ops) {
    const bool listed = rules.by_op[op.index].action != Action::Inputs;
    if (op.served || !(listed || casts_in_torch(op) || ScriptCastKernel::is_for(op))) continue;
    register_kernel(op);
    op.served = true;
  }
  rules.served.store(true, std::memory_order_release);
}

std::vector<std::string> dispatched_ops() {
  std::vector<std::string> names;
  for (const Op& op : catalogue().ops) names.push_back(op.name);
  return names;
}

}  // namespace habana_mp::autocast
