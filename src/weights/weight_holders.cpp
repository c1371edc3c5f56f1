// The weight cache's part that knows who else holds a weight's memory, and may write to it.
#include <algorithm>
#include <utility>

#include "weights/weight.h"
#include "weights/weight_cache.h"

namespace habana_mp {

std::optional<Ended> WeightCache::why_never_kept(const at::Tensor& weight, bool others_write) {
  if (is_shared(weight)) return Ended::Shared;
  if (others_write || !is_own_memory(weight)) return Ended::Foreign;
  return std::nullopt;
}

std::optional<Ended> WeightCache::why_never_kept(const at::Tensor& weight) {
  const c10::StorageImpl* storage = weight.storage().unsafeGetStorageImpl();
  const std::size_t known = known_holds(weight);
  bool others_write = false;
  Caller caller = Caller::Python;
  {
    const Section section(mutex);
    others_write = is_written(storage);
    if (const auto it = entries_.find(storage); it != entries_.end()) {
      others_write = others_write || it->second.exported || it->second.held;
      caller = it->second.sees_holders(caller);
    }
  }
  const bool held = caller == Caller::Python && is_held_elsewhere(weight, known);
  return why_never_kept(weight, others_write || held);
}

void WeightCache::begin_pass(const at::Tensor& weight) {
  const std::size_t known = known_holds(weight);
  Section section(mutex);
  Entry& entry = entry_of(section, weight);
  const bool held = is_held_elsewhere(weight, known);
  // While others pass it on, only what they do not hold either shows.
  if (held != entry.held && (!held || entry.passes == 0)) {
    entry.held = held;
    entry.last_end = ++ends_;
  }
  ++entry.passes;
}

void WeightCache::end_pass(const c10::StorageImpl* weight) {
  const Section section(mutex);
  const auto it = entries_.find(weight);
  if (it != entries_.end() && it->second.passes > 0) --it->second.passes;
}

void WeightCache::begin_writes(const std::vector<at::Tensor>& tensors, const GoesOn& goes_on) {
  settle_writes();
  auto writes = std::make_shared<Writes>();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.has_storage()) writes->storages.push_back(tensor.storage().unsafeGetStorageImpl());
  }
  writes->go_on = goes_on;
  const Section section(mutex);
  writes_.push_back(std::move(writes));
  any_writes_ = true;
}

void WeightCache::leave_others_behind() {
  const Section section(mutex);
  for (auto& [storage, entry] : entries_) entry.passes = 0;
  static_cast<void>(new auto(std::exchange(writes_, {})));
  any_writes_ = false;
}

void WeightCache::settle_writes() {
  std::vector<std::shared_ptr<const Writes>> over;
  {
    const Section section(mutex);
    over = writes_;
  }
  std::erase_if(over, [](const auto& writes) { return writes->go_on(); });
  if (over.empty()) return;
  const Section section(mutex);
  for (const auto& writes : over) {
    if (std::erase(writes_, writes) == 0) continue;  // another thread has been here
    for (const c10::StorageImpl* storage : writes->storages) {
      const auto it = entries_.find(storage);
      if (it != entries_.end()) it->second.last_end = ++ends_;
    }
  }
  any_writes_ = !writes_.empty();
}

bool WeightCache::is_written(const c10::StorageImpl* storage) const {
  return std::ranges::any_of(writes_, [&](const auto& writes) {
    return std::ranges::find(writes->storages, storage) != writes->storages.end();
  });
}

}  // namespace habana_mp
