#include "evidence/differences.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "cast/by_memory.h"
#include "cast/numbers.h"
#include "evidence/graphs/handed_gradients.h"
#include "evidence/numbers.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

// They are in bfloat16: as much memory as the activations of the model take in it, and as much
// again for the roundings of products. Beyond this the shares of further calls are not measured.
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;

std::int64_t bytes_of(const Difference& difference) {
  const at::Tensor& rounding = difference.rounding;
  return (difference.numbers.numel() + (rounding.defined() ? rounding.numel() : 0)) * 2;
}

// What waits for a gradient: freed when its graph is, or when nobody measures any more.
struct Kept {
  Difference difference;
  Use use;
  report::SiteId maker = report::kNone;
  bool read = false;
  // What the gradient that a backward pass begins with here makes of the rounding.
  double begun = 0;
  UseRead use_begun{};

  const at::Tensor& rounding() const {
    return difference.rounding.defined() ? difference.rounding : difference.numbers;
  }
};

// A result that waits, for those that are given it or a view of it.
struct Result {
  std::uint64_t number = 0;
  std::int64_t version = 0;
  at::ScalarType dtype = at::kFloat;
};

struct Differences {
  ForkSafeMutex mutex;
  std::unordered_map<std::uint64_t, Kept> by_number;
  ByMemory<Result> results;
  std::uint64_t made = 0;
  std::int64_t bytes = 0;
};

Differences& differences() { return process_wide<Differences>(); }

// A share of a difference, which the hook of a result has.
class Waiting {
 public:
  Waiting(std::uint64_t number, std::shared_ptr<InnerGradients> inner)
      : number_(number), inner_(std::move(inner)) {}
  ~Waiting() {
    Kept gone;
    const std::lock_guard guard(differences().mutex);
    const auto found = differences().by_number.find(number_);
    if (found == differences().by_number.end()) return;
    differences().bytes -= bytes_of(found->second.difference);
    gone = std::move(found->second);
    differences().by_number.erase(found);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // In a backward pass: nothing that goes wrong here may end it.
  void gradient(const at::Tensor& gradient) const {
    // With create_graph it is the gradient of something that the loss is made of.
    const auto [maker, begun, use_begun] = take_begun();
    if (!gradient.defined() || c10::GradMode::is_enabled()) return;
    try {
      if (use_begun) use_begun(maker, begun);
      multiply(inner_ ? inner_->without(gradient) : gradient);
    } catch (const std::exception&) {
    }
  }

 private:
  std::tuple<report::SiteId, double, UseRead> take_begun() const {
    const std::lock_guard guard(differences().mutex);
    const auto found = differences().by_number.find(number_);
    if (found == differences().by_number.end()) return {};
    Kept& kept = found->second;
    return {kept.maker, std::exchange(kept.begun, 0), std::exchange(kept.use_begun, {})};
  }

  void multiply(const at::Tensor& gradient) const {
    Kept kept;
    {
      const std::lock_guard guard(differences().mutex);
      const auto found = differences().by_number.find(number_);
      if (found == differences().by_number.end()) return;
      kept = found->second;
    }
    if (!kept.use) return;
    const auto& [numbers, rounding] = kept.difference;
    const bool fits = gradient.layout() == at::kStrided && is_ordinary(gradient) &&
                      gradient.sizes() == numbers.sizes();
    if (!fits) return;
    double change = 0, rounded = 0;
    {
      const OutOfSight out_of_sight;
      change = product(gradient, numbers);
      rounded = rounding.defined() ? product(gradient, rounding) : change;
    }
    kept.use(change, rounded, kept.read);
  }

  std::uint64_t number_;
  std::shared_ptr<InnerGradients> inner_;
};

// With the lock.
Result* result_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad() || tensor.is_leaf()) return nullptr;
  Result* result = differences().results.find(tensor);
  const bool same = result != nullptr && result->version == tensor._version() &&
                    result->dtype == tensor.scalar_type();
  return same ? result : nullptr;
}

// With the lock. Some are known that use the result.
void mark_read(const Result* result) {
  const auto waits = differences().by_number.find(result == nullptr ? 0 : result->number);
  if (waits != differences().by_number.end()) waits->second.read = true;
}

// Whether a view of the result would be the same view of the other one.
bool lies_like(const at::Tensor& other, const at::Tensor& result) {
  return result.has_storage() && result.is_non_overlapping_and_dense() &&
         result.storage_offset() == 0 && other.strides() == result.strides() &&
         result.storage().nbytes() == static_cast<std::size_t>(result.numel()) * result.itemsize();
}

// Multiplies the gradient that a call hands back to a view of a result with the rounding of it.
class Reading {
 public:
  Reading(std::uint64_t number, const at::Tensor& view, UseRead use)
      : number_(number),
        sizes_(view.sizes().vec()),
        strides_(view.strides().vec()),
        offset_(view.storage_offset()),
        use_(std::move(use)) {}

  void operator()(const at::Tensor& gradient) const {
    at::Tensor rounding;
    report::SiteId maker = report::kNone;
    {
      const std::lock_guard guard(differences().mutex);
      const auto found = differences().by_number.find(number_);
      if (found == differences().by_number.end()) return;
      rounding = found->second.rounding();
      maker = found->second.maker;
    }
    if (gradient.layout() != at::kStrided || !is_ordinary(gradient) || gradient.sizes() != sizes_)
      return;
    double product = 0;
    {
      const OutOfSight out_of_sight;
      product = evidence::product(gradient, rounding.as_strided(sizes_, strides_, offset_));
    }
    use_(maker, product);
  }

 private:
  std::uint64_t number_;
  std::vector<std::int64_t> sizes_, strides_;
  std::int64_t offset_;
  UseRead use_;
};

}  // namespace

bool wait_for_gradient(const at::Tensor& result, Difference difference,
                       std::shared_ptr<InnerGradients> inner, report::SiteId maker, Use use) {
  if (!difference.numbers.defined() || !result.requires_grad() || result.is_leaf()) return true;
  const std::int64_t bytes = bytes_of(difference);
  std::uint64_t number = 0;
  ByMemory<Result>::Gone gone;
  {
    const std::lock_guard guard(differences().mutex);
    Differences& kept = differences();
    if (kept.bytes + bytes > kMostBytes) return false;
    kept.bytes += bytes;
    number = ++kept.made;
    Kept made{std::move(difference), std::move(use), maker};
    if (maker != report::kNone && lies_like(made.rounding(), result)) {
      *kept.results.get(result) = {number, result._version(), result.scalar_type()};
      gone = kept.results.take_expired();
    }
    kept.by_number.emplace(number, std::move(made));
  }
  auto waiting = std::make_shared<const Waiting>(number, std::move(inner));
  result.register_hook([waiting](const at::Tensor& gradient) { waiting->gradient(gradient); });
  return true;
}

void watch_readers(c10::ArrayRef<at::Tensor> arguments, c10::ArrayRef<at::Tensor> results,
                   const UseRead& use) {
  std::vector<Receiver> receivers;
  {
    const std::lock_guard guard(differences().mutex);
    for (const at::Tensor& argument : arguments) {
      const Result* result = result_of(argument);
      const bool twice = std::ranges::any_of(
          receivers, [&](const Receiver& each) { return each.tensor.is_same(argument); });
      const bool view = std::ranges::any_of(
          results, [&](const at::Tensor& made) { return memory_of(made) == memory_of(argument); });
      if (result == nullptr || twice || view) continue;
      receivers.push_back({argument, Reading(result->number, argument, use)});
    }
  }
  if (receivers.empty()) return;
  std::uint64_t since = node_number(receivers.front().tensor);
  for (const Receiver& each : receivers) since = std::min(since, node_number(each.tensor));
  if (on_gradients(results, arguments, since, receivers) == 0) return;
  const std::lock_guard guard(differences().mutex);
  for (const Receiver& each : receivers) mark_read(result_of(each.tensor));
}

void begin_at(const at::Tensor& root, const at::Tensor& gradient, UseRead use) {
  const at::Tensor rounding = known_rounding(root);
  if (!rounding.defined()) return;
  double begun = 0;
  {
    const OutOfSight out_of_sight;
    begun = gradient.defined() ? product(gradient, rounding) : rounding.sum().item<double>();
  }
  const std::lock_guard guard(differences().mutex);
  const Result* result = result_of(root);
  const auto waits = differences().by_number.find(result == nullptr ? 0 : result->number);
  if (waits == differences().by_number.end()) return;
  waits->second.read = true;
  waits->second.begun += begun;  // one tensor may be several of the outputs
  waits->second.use_begun = std::move(use);
}

at::Tensor known_rounding(const at::Tensor& tensor, report::SiteId* maker) {
  at::Tensor rounding;
  {
    const std::lock_guard guard(differences().mutex);
    const Result* result = result_of(tensor);
    const auto waits = differences().by_number.find(result == nullptr ? 0 : result->number);
    if (waits == differences().by_number.end()) return {};
    rounding = waits->second.rounding();
    if (maker != nullptr) *maker = waits->second.maker;
  }
  const OutOfSight out_of_sight;
  return rounding.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void hand_on(const at::Tensor& source, const at::Tensor& copy) {
  report::SiteId maker = report::kNone;
  at::Tensor rounding = known_rounding(source, &maker);
  if (!rounding.defined()) return;
  const OutOfSight out_of_sight;
  if (rounding.strides() != copy.strides()) {
    rounding = at::empty_like(copy, copy.options().dtype(at::kBFloat16)).copy_(rounding);
  }
  {
    const std::lock_guard guard(differences().mutex);
    mark_read(result_of(source));
  }
  wait_for_gradient(copy, {rounding}, nullptr, maker, nullptr);
}

bool any_waits(c10::ArrayRef<at::Tensor> tensors) {
  const std::lock_guard guard(differences().mutex);
  return std::ranges::any_of(tensors,
                             [](const at::Tensor& tensor) { return result_of(tensor) != nullptr; });
}

void forget_differences() {
  decltype(Differences::by_number) unused;
  ByMemory<Result>::Gone gone;
  const std::lock_guard guard(differences().mutex);
  unused.swap(differences().by_number);
  gone = differences().results.take_all();
  differences().bytes = 0;
}

}  // namespace habana_mp::evidence
