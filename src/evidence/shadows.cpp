#include "evidence/shadows.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "cast/by_memory.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

constexpr std::int64_t kMostShadowNumbers = std::int64_t{1} << 26;

struct Shadow {
  std::int64_t version = 0;
  at::ScalarType dtype = at::kFloat;
  at::Tensor numbers;  // all of the memory, in a row, in float32; undefined beyond the limit
  report::SiteId origin = report::kNone;

  std::int64_t size() const { return numbers.defined() ? numbers.numel() : 0; }
};

struct Shadows {
  ForkSafeMutex mutex;
  std::array<ByMemory<Shadow>, 2> by_memory;  // by Throughout
  std::int64_t numbers = 0;

  ByMemory<Shadow>& of(Throughout dtype) { return by_memory[static_cast<std::size_t>(dtype)]; }
};

Shadows& shadows() { return process_wide<Shadows>(); }

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

}  // namespace

at::Tensor shadow_of(const at::Tensor& tensor, Throughout dtype, report::SiteId* origin) {
  // What a function of autograd makes has no gradients inside and requires one outside: a
  // checkpoint runs again, and its errors count there.
  if (tensor.requires_grad()) return {};
  at::Tensor numbers;
  {
    const std::lock_guard guard(shadows().mutex);
    const Shadow* shadow = shadows().of(dtype).find(tensor);
    if (shadow == nullptr || !shadow->numbers.defined() || shadow->version != version_of(tensor) ||
        shadow->dtype != tensor.scalar_type()) {
      return {};
    }
    if (origin != nullptr) *origin = shadow->origin;
    numbers = shadow->numbers;
  }
  const OutOfSight out_of_sight;
  return numbers.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void keep_shadow(const at::Tensor& tensor, Throughout dtype, const at::Tensor& numbers,
                 report::SiteId origin) {
  const bool whole =
      tensor.has_storage() && tensor.is_non_overlapping_and_dense() &&
      tensor.storage_offset() == 0 &&
      tensor.storage().nbytes() == static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
  if (!whole) return;
  Shadow made{version_of(tensor), tensor.scalar_type(),
              at::empty({tensor.numel()}, numbers.options().dtype(at::kFloat)), origin};
  made.numbers.as_strided(tensor.sizes(), tensor.strides()).copy_(numbers);
  ByMemory<Shadow>::Gone gone;  // freed behind the lock, as is what `made` takes the place of
  const std::lock_guard guard(shadows().mutex);
  Shadows& kept = shadows();
  Shadow& place = *kept.of(dtype).get(tensor);
  gone = kept.of(dtype).take_expired();
  for (const auto& one : gone) kept.numbers -= one.fact.size();
  std::swap(place, made);
  kept.numbers -= made.size();
  if (kept.numbers + place.size() > kMostShadowNumbers) std::swap(place.numbers, made.numbers);
  kept.numbers += place.size();
}

void forget_shadows() {
  std::array<ByMemory<Shadow>::Gone, 2> gone;
  const std::lock_guard guard(shadows().mutex);
  for (std::size_t i = 0; i < gone.size(); ++i) gone[i] = shadows().by_memory[i].take_all();
  shadows().numbers = 0;
}

}  // namespace habana_mp::evidence
