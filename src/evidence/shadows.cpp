#include "evidence/shadows.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
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

// With the lock.
Shadow* known_shadow(const at::Tensor& tensor, Throughout dtype) {
  Shadow* shadow = shadows().of(dtype).find(tensor);
  const bool same = shadow != nullptr && shadow->numbers.defined() &&
                    shadow->version == version_of(tensor) && shadow->dtype == tensor.scalar_type();
  return same ? shadow : nullptr;
}

// CheckpointFunction of torch, DeepSpeed, Megatron-LM and fairscale.
bool is_checkpoint(std::string_view function) {
  return function.find("heckpoint") != std::string_view::npos;
}

// Of all of the memory, those of a tensor.
at::Tensor part_of(const at::Tensor& numbers, const at::Tensor& tensor) {
  const OutOfSight out_of_sight;
  return numbers.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

}  // namespace

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

at::Tensor shadow_of(const at::Tensor& tensor, Throughout dtype, report::SiteId* origin) {
  if (tensor.requires_grad()) return {};
  at::Tensor numbers;
  {
    const std::lock_guard guard(shadows().mutex);
    const Shadow* shadow = known_shadow(tensor, dtype);
    if (shadow == nullptr) return {};
    if (origin != nullptr) *origin = shadow->origin;
    numbers = shadow->numbers;
  }
  return part_of(numbers, tensor);
}

at::Tensor take_shadow(const at::Tensor& tensor, Throughout dtype, report::SiteId& origin) {
  if (!tensor.requires_grad() || tensor.is_leaf()) return {};
  at::Tensor numbers;
  {
    const std::lock_guard guard(shadows().mutex);
    Shadow* shadow = known_shadow(tensor, dtype);
    if (shadow == nullptr || is_checkpoint(tensor.grad_fn()->name())) return {};
    origin = shadow->origin;
    shadows().numbers -= shadow->size();
    numbers = std::move(shadow->numbers);
    shadow->numbers.reset();
  }
  return part_of(numbers, tensor);
}

void keep_shadow(const at::Tensor& tensor, Throughout dtype, const at::Tensor& numbers,
                 report::SiteId origin, std::optional<std::int64_t> before) {
  if (!is_readable(tensor) || at::has_internal_overlap(tensor) == at::MemOverlap::Yes) return;
  const auto size = static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  const bool whole = tensor.numel() == size && tensor.is_non_overlapping_and_dense();
  Shadow made{version_of(tensor), tensor.scalar_type(), {}, origin};
  if (!whole) {
    const std::lock_guard guard(shadows().mutex);
    const Shadow* had = shadows().of(dtype).find(tensor);
    if (had != nullptr && had->dtype == made.dtype && had->version == before.value_or(made.version))
      made.numbers = had->numbers;
  }
  if (whole || size <= kMostShadowNumbers) {
    const OutOfSight out_of_sight;
    if (whole) {
      made.numbers = at::empty({size}, numbers.options().dtype(at::kFloat));
    } else if (made.numbers.defined()) {
      made.numbers = made.numbers.clone();
    } else {
      made.numbers = tensor.detach().as_strided({size}, {1}, 0).to(at::kFloat, false, true);
    }
    made.numbers.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset())
        .copy_(numbers);
  }
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

void copy_shadows(const at::Tensor& tensor, const at::Tensor& copy) {
  for (const Throughout dtype : {Throughout::Float32, Throughout::Low}) {
    report::SiteId origin = report::kNone;
    const at::Tensor numbers = shadow_of(tensor, dtype, &origin);
    if (numbers.defined()) keep_shadow(copy, dtype, numbers, origin);
  }
}

void forget_shadows() {
  std::array<ByMemory<Shadow>::Gone, 2> gone;
  const std::lock_guard guard(shadows().mutex);
  for (std::size_t i = 0; i < gone.size(); ++i) gone[i] = shadows().by_memory[i].take_all();
  shadows().numbers = 0;
}

}  // namespace habana_mp::evidence
