#include "torch/tensor_history.h"

#include <algorithm>

#include "torch/weight_cache.h"

namespace habana_mp {
namespace {

const c10::StorageImpl* memory_of(const at::TensorBase& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

History* TensorHistories::find(const at::TensorBase& tensor) {
  const auto found = by_memory_.find(memory_of(tensor));
  return found == by_memory_.end() ? nullptr : &found->second;
}

History* TensorHistories::get(const at::TensorBase& tensor) {
  const c10::StorageImpl* memory = memory_of(tensor);
  if (memory == nullptr) return nullptr;
  if (by_memory_.size() >= sweep_at_) sweep();
  const auto found = by_memory_.find(memory);
  if (found != by_memory_.end()) return &found->second;
  return &by_memory_.try_emplace(memory, tensor.storage().getWeakStorageImpl()).first->second;
}

void TensorHistories::sweep() {
  for (auto it = by_memory_.begin(); it != by_memory_.end();) {
    if (!it->second.memory.expired()) {
      ++it;
      continue;
    }
    expired_.push_back(std::move(it->second));
    it = by_memory_.erase(it);
  }
  sweep_at_ = std::max<std::size_t>(4096, 2 * by_memory_.size());
}

std::vector<History> TensorHistories::take_all() {
  for (auto& [memory, history] : by_memory_) expired_.push_back(std::move(history));
  by_memory_.clear();
  return take_expired();
}

unsigned count_cast(History& history, const at::TensorBase& tensor, DType to, record::SiteId site) {
  const std::uint32_t version =
      tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
  const std::uint64_t epoch = weight_cache().epoch();
  const void* data = tensor.const_data_ptr();
  const bool same = history.times > 0 && history.cast_to == to && history.version == version &&
                    history.epoch == epoch && history.data == data &&
                    history.numel == tensor.numel();
  if (!same) {
    history.times = 0;
    history.first = site;
    history.cast_to = to;
    history.version = version;
    history.epoch = epoch;
    history.data = data;
    history.numel = tensor.numel();
  }
  return ++history.times;
}

}  // namespace habana_mp
