#include "torch/autocast_kernel.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "policy/names.h"
#include "record/cast_log.h"
#include "torch/autocast_log.h"
#include "torch/autocast_op.h"
#include "torch/autocast_state.h"
#include "torch/casts_off.h"
#include "torch/tensor_cast.h"

namespace habana_mp::autocast {
namespace {

using Stack = torch::jit::Stack;
// KernelFunction in torch 2.11, SafeKernelFunction later.
using TorchKernel =
    std::decay_t<decltype(std::declval<c10::OperatorHandle>().getComputedKernelForDispatchKey(
        c10::DispatchKey::CPU))>;

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
      ops.push_back({*handle, std::move(full), std::move(*form), {}});
    }
  }
};

Catalogue& catalogue() {
  static auto* all = new Catalogue;  // the dispatcher keeps our kernels to the end
  return *all;
}

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const Op& op, std::size_t index, std::size_t device, std::optional<TorchKernel> torch)
      : op_(op), index_(index), device_(device), torch_(std::move(torch)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) const {
    const Here here = scope_here(device_);
    if (here.whose == Whose::Torch) {
      return torch_ ? torch_->callBoxed(handle, keys, stack) : go_on(handle, keys, stack);
    }
    if (here.whose == Whose::Nobody || casts_off()) return go_on(handle, keys, stack);
    const Rule rule = here.scope->rules->by_op[index_];
    if (rule.action == Action::Inputs) return go_on(handle, keys, stack);
    if (rule.action == Action::Error) raise_unsafe(*here.scope->rules->policy);

    // A listed op is atomic: nothing inside it is cast by itself (D19).
    const c10::impl::ExcludeDispatchKeyGuard inside(kAllKeys);
    if (settled(rule, dtypes_of(op_.form, *stack, kDevices[device_])) &&
        record::level() == record::Level::Off) {
      return go_on(handle, keys, stack);
    }
    Call call(op_.form, *stack, kDevices[device_]);
    const Decision decision = decide(rule, call.described(), call.explicit_dtype());
    const bool casting = decision.cause != Cause::None && call.any_to_cast(decision);
    if (record::level() != record::Level::Off) {
      log_call(op_, *here.scope->rules->policy, call, decision, casting);
    }
    if (!casting) return go_on(handle, keys, stack);
    call.cast(decision, here.scope->cached);
    handle.callBoxed(stack);
    if (call.gave_away_copy()) {
      call.take_back();
      call.cast(decision, /*cached=*/false);
      handle.callBoxed(stack);
    }
  }

 private:
  // The op below autocast; ops that it is made of come to their own kernels.
  void go_on(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) const {
    handle.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDeviceKeys[device_]), stack);
  }

  [[noreturn]] void raise_unsafe(const Policy& policy) const {  // D31, F190
    TORCH_CHECK(false,
                "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
                "autocast.\nThe policy in force (",
                policy.name(), ") refuses ", op_.name,
                " because its backward can leave the range of the lower precision. Use "
                "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe, or put the "
                "call in hmp.disable_casts().");
  }

  const Op& op_;
  const std::size_t index_;
  const std::size_t device_;
  const std::optional<TorchKernel> torch_;
};

// Keeps back torch's warning that a kernel is registered over another one (once in a process, and
// then for nobody else), and no other.
class OverrideSilence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("Overriding a previously registered kernel") == std::string::npos) {
      before_->process(warning);
    }
  }

 private:
  c10::WarningHandler* before_ = c10::WarningUtils::get_warning_handler();
  // With it the warning is not used up: the next one who earns it gets it.
  c10::WarningUtils::WarnAlways always_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

torch::Library& library(std::size_t device) {
  static auto* libraries = new std::array<std::unique_ptr<torch::Library>, kDeviceCount>;
  auto& own = (*libraries)[device];
  if (!own) {
    own = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kDeviceKeys[device],
                                           __FILE__, __LINE__);
  }
  return *own;
}

void register_kernel(Op& op, std::size_t index, std::size_t device) {
  op.served[device] = true;
  const c10::DispatchKey key = kDeviceKeys[device];
  std::optional<TorchKernel> torch;
  if (op.handle.hasKernelForDispatchKey(key)) {
    torch.emplace(op.handle.getComputedKernelForDispatchKey(key));
  }
  library(device).impl(op.name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                            std::make_unique<Kernel>(op, index, device, torch)));
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
  rules->policy = std::move(policy);
  return rules;
}

void serve(const Rules& rules, std::size_t device) {
  if (rules.served[device].load(std::memory_order_acquire)) return;
  const std::lock_guard guard(serving);
  const OverrideSilence silence;
  std::deque<Op>& ops = catalogue().ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].served[device]) continue;
    if (rules.by_op[i].action != Action::Inputs ||
        ops[i].handle.hasKernelForDispatchKey(kDeviceKeys[device])) {
      register_kernel(ops[i], i, device);
    }
  }
  rules.served[device].store(true, std::memory_order_release);
}

std::vector<std::string> dispatched_ops() {
  std::vector<std::string> names;
  for (const Op& op : catalogue().ops) names.push_back(op.name);
  return names;
}

}  // namespace habana_mp::autocast
