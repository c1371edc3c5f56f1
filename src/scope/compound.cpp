#include "scope/compound.h"

#include <torch/csrc/jit/python/update_graph_executor_opt.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "listen/event.h"

namespace habana_mp::autocast {
namespace {

constexpr c10::DispatchKeySet kDeviceKeySet =
    kDeviceSets[0] | kDeviceSets[1] | kDeviceSets[2] | kDeviceSets[3] | kDeviceSets[4];

MakeRules make_rules = nullptr;

// Made at the first compound of a conversion: most models have none, and the rules of all ops of
// the dispatcher take milliseconds.
class OfConversion {
 public:
  void set(std::shared_ptr<const Policy> policy) {
    const std::uint64_t id =
        policy == nullptr ? 0 : listen::decider_id(*policy, listen::FrontEnd::Convert);
    const std::lock_guard guard(mutex_);
    policy_ = std::move(policy);
    id_.store(id, std::memory_order_relaxed);
    state_ = nullptr;
  }

  std::shared_ptr<const Policy> policy() {
    const std::lock_guard guard(mutex_);
    return policy_;
  }
  std::uint64_t id() const { return id_.load(std::memory_order_relaxed); }

  std::shared_ptr<const State> state() {
    std::shared_ptr<const Policy> policy;
    {
      const std::lock_guard guard(mutex_);
      if (state_ != nullptr || policy_ == nullptr) return state_;
      policy = policy_;
    }
    const std::shared_ptr<const State> made = state_of(policy);  // takes other locks
    const std::lock_guard guard(mutex_);
    if (policy_ != policy) return made;  // another thread has converted anew
    if (state_ == nullptr) state_ = made;
    return state_;
  }

 private:
  static std::shared_ptr<const State> state_of(const std::shared_ptr<const Policy>& policy) {
    const std::shared_ptr<const Rules> rules = make_rules(policy);
    State state{};
    for (Scope& scope : state.scopes) scope = {rules, policy->cached()};
    return std::make_shared<const State>(std::move(state));
  }

  ForkSafeMutex mutex_;
  std::shared_ptr<const Policy> policy_;
  std::atomic<std::uint64_t> id_{0};
  std::shared_ptr<const State> state_;
};

// Has TorchScript run each op by itself, as it is written, on this thread; returns whether it did
// otherwise. Its optimizations would pass the rules by: fused ops never come to the dispatcher, and
// its own formulas of a backward pass take the tensors from before our casts. A region does
// without: torch keeps one plan of a function for calls in a region and under torch.autocast, and
// would use that of the other one.
bool stop_optimizing_scripts() {
  const bool before = torch::jit::getGraphExecutorOptimize();
  torch::jit::setGraphExecutorOptimize(false);
  return before;
}

}  // namespace

void set_rules_maker(MakeRules make) { make_rules = make; }

void set_conversion(std::shared_ptr<const Policy> policy) {
  process_wide<OfConversion>().set(std::move(policy));
}

std::shared_ptr<const Policy> conversion() { return process_wide<OfConversion>().policy(); }

std::uint64_t conversion_id() { return process_wide<OfConversion>().id(); }

bool in_region() {
  return (excluded_here() & kDeviceKeySet) != kDeviceKeySet && !this_thread.in_compound;
}

bool in_region_of_int8(std::string_view op) {
  if (!in_region()) return false;
  const c10::DispatchKeySet excluded = excluded_here();
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    if (!is_on(i, excluded)) continue;
    const auto [ruler, scope] = ruling_here(i, excluded);
    if (ruler == Ruler::Ours && scope->rules->has_int8 &&
        is_int8(scope->rules->policy->resolve_overload(op).rule.action))
      return true;
  }
  return false;
}

std::optional<Region> compound_region() {
  if ((excluded_here() & kDeviceKeySet) != kDeviceKeySet) return std::nullopt;
  const std::shared_ptr<const State> state = process_wide<OfConversion>().state();
  if (state == nullptr) return std::nullopt;
  Region region;
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    const at::ScalarType low = at::autocast::get_autocast_dtype(kDevices[i]);
    region.settings.push_back({i, true, low, state->scopes[i]});
  }
  region.in_compound = true;
  return region;
}

InsideUnpatched::InsideUnpatched(Unpatched code)
    : keys_before_(c10::impl::tls_local_dispatch_key_set()) {
  if ((keys_before_.excluded_ & kDeviceKeySet) != kDeviceKeySet) return;  // autocast is on
  state_ = process_wide<OfConversion>().state();
  if (state_ == nullptr) return;
  before_ = this_thread;
  this_thread = {.state = state_.get(),
                 .nesting = torch_nesting(),
                 .graph_task = graph_task(),
                 .flags = {},
                 .hidden = {},
                 .in_compound = code == Unpatched::Compound};
  if (code == Unpatched::Script) optimized_before_ = stop_optimizing_scripts();
  c10::impl::LocalDispatchKeySet keys = keys_before_;
  keys.included_ = keys.included_ | c10::DispatchKeySet(kKey);
  keys.excluded_ = keys.excluded_ - kDeviceKeySet - c10::DispatchKeySet(kRegionKey);
  c10::impl::_force_tls_local_dispatch_key_set(keys);
}

InsideUnpatched::~InsideUnpatched() {
  if (!before_) return;
  if (optimized_before_) torch::jit::setGraphExecutorOptimize(*optimized_before_);
  c10::impl::_force_tls_local_dispatch_key_set(keys_before_);
  this_thread = *before_;
}

}  // namespace habana_mp::autocast
