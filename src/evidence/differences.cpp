#include "evidence/differences.h"

#include <c10/core/GradMode.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "cast/numbers.h"
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
};

struct Differences {
  ForkSafeMutex mutex;
  std::unordered_map<std::uint64_t, Kept> by_number;
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
    if (!gradient.defined() || c10::GradMode::is_enabled()) return;
    try {
      multiply(inner_ ? inner_->without(gradient) : gradient);
    } catch (const std::exception&) {
    }
  }

 private:
  void multiply(const at::Tensor& gradient) const {
    Kept kept;
    {
      const std::lock_guard guard(differences().mutex);
      const auto found = differences().by_number.find(number_);
      if (found == differences().by_number.end()) return;
      kept = found->second;
    }
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
    kept.use(change, rounded);
  }

  std::uint64_t number_;
  std::shared_ptr<InnerGradients> inner_;
};

}  // namespace

bool wait_for_gradient(const at::Tensor& result, Difference difference,
                       std::shared_ptr<InnerGradients> inner, Use use) {
  if (!difference.numbers.defined() || !result.requires_grad() || result.is_leaf()) return true;
  const std::int64_t bytes = bytes_of(difference);
  std::uint64_t number = 0;
  {
    const std::lock_guard guard(differences().mutex);
    Differences& kept = differences();
    if (kept.bytes + bytes > kMostBytes) return false;
    kept.bytes += bytes;
    number = ++kept.made;
    kept.by_number.emplace(number, Kept{std::move(difference), std::move(use)});
  }
  auto waiting = std::make_shared<const Waiting>(number, std::move(inner));
  result.register_hook([waiting](const at::Tensor& gradient) { waiting->gradient(gradient); });
  return true;
}

void forget_differences() {
  decltype(Differences::by_number) unused;
  const std::lock_guard guard(differences().mutex);
  unused.swap(differences().by_number);
  differences().bytes = 0;
}

}  // namespace habana_mp::evidence
