#include "evidence/shadows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

constexpr std::int64_t kMostShadowNumbers = std::int64_t{1} << 26;

struct Shadow {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  std::int64_t version = 0;
  at::ScalarType dtype = at::kFloat;
  at::Tensor numbers;  // all of the memory, in a row, in float32
  report::SiteId origin = report::kNone;
};

struct Shadows {
  ForkSafeMutex mutex;
  std::unordered_map<const c10::StorageImpl*, Shadow> by_memory;
  std::size_t sweep_at = 64;  // entries, from which on those of memory that is gone go
  std::int64_t numbers = 0;
};

Shadows& shadows() { return process_wide<Shadows>(); }

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

}  // namespace

at::Tensor shadow_of(const at::Tensor& tensor, report::SiteId* origin) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  at::Tensor numbers;
  {
    const std::lock_guard guard(shadows().mutex);
    const auto found = shadows().by_memory.find(tensor.storage().unsafeGetStorageImpl());
    if (found == shadows().by_memory.end()) return {};
    const Shadow& shadow = found->second;
    if (shadow.memory.expired() || shadow.version != version_of(tensor) ||
        shadow.dtype != tensor.scalar_type()) {
      return {};
    }
    if (origin != nullptr) *origin = shadow.origin;
    numbers = shadow.numbers;
  }
  const OutOfSight out_of_sight;
  return numbers.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void keep_shadow(const at::Tensor& tensor, const at::Tensor& numbers, report::SiteId origin) {
  const bool whole =
      tensor.has_storage() && tensor.is_non_overlapping_and_dense() &&
      tensor.storage_offset() == 0 &&
      tensor.storage().nbytes() == static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
  if (!whole) return;
  Shadow made{tensor.storage().getWeakStorageImpl(), version_of(tensor), tensor.scalar_type(),
              at::empty({tensor.numel()}, numbers.options().dtype(at::kFloat)), origin};
  made.numbers.as_strided(tensor.sizes(), tensor.strides()).copy_(numbers);
  std::vector<Shadow> gone;  // freed behind the lock
  const std::lock_guard guard(shadows().mutex);
  Shadows& kept = shadows();
  if (kept.by_memory.size() >= kept.sweep_at) {
    std::erase_if(kept.by_memory, [&](auto& entry) {
      if (!entry.second.memory.expired()) return false;
      kept.numbers -= entry.second.numbers.numel();
      gone.push_back(std::move(entry.second));
      return true;
    });
    kept.sweep_at = std::max<std::size_t>(64, 2 * kept.by_memory.size());
  }
  if (kept.numbers + tensor.numel() > kMostShadowNumbers) return;
  kept.numbers += tensor.numel();
  const auto [place, fresh] =
      kept.by_memory.try_emplace(tensor.storage().unsafeGetStorageImpl(), std::move(made));
  if (!fresh) {
    std::swap(place->second, made);
    kept.numbers -= made.numbers.numel();
    gone.push_back(std::move(made));
  }
}

void forget_shadows() {
  decltype(Shadows::by_memory) gone;
  const std::lock_guard guard(shadows().mutex);
  gone.swap(shadows().by_memory);
  shadows().numbers = 0;
}

}  // namespace habana_mp::evidence
