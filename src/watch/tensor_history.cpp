#include "watch/tensor_history.h"

#include "weights/weight_cache.h"

namespace habana_mp {
namespace {

// So many are looked at for each new one, so that of those kept about one in eight is of memory
// that is gone. What stands for such memory lies between the blocks of the heap, where few of them
// can keep gigabytes from being used again.
constexpr int kSwept = 8;

const c10::StorageImpl* memory_of(const at::TensorBase& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

History* TensorHistories::find(const at::TensorBase& tensor) { return find(memory_of(tensor)); }

History* TensorHistories::find(const c10::StorageImpl* memory) {
  const auto found = by_memory_.find(memory);
  return found == by_memory_.end() ? nullptr : &found->second;
}

History* TensorHistories::get(const at::TensorBase& tensor) {
  const c10::StorageImpl* memory = memory_of(tensor);
  if (memory == nullptr) return nullptr;
  const auto found = by_memory_.find(memory);
  if (found != by_memory_.end()) return &found->second;
  sweep_some();
  History& made =
      by_memory_.try_emplace(memory, tensor.storage().getWeakStorageImpl()).first->second;
  swept_.push_back(&made);
  return &made;
}

void TensorHistories::sweep_some() {
  for (int i = 0; i < kSwept && !swept_.empty(); ++i) {
    if (next_ >= swept_.size()) next_ = 0;
    if (!swept_[next_]->memory.expired()) {
      ++next_;
      continue;
    }
    const auto gone = by_memory_.find(swept_[next_]->memory._unsafe_get_target());
    expired_.push_back(std::move(gone->second));
    by_memory_.erase(gone);
    swept_[next_] = swept_.back();
    swept_.pop_back();
  }
}

std::vector<History> TensorHistories::take_all() {
  for (auto& [memory, history] : by_memory_) expired_.push_back(std::move(history));
  by_memory_.clear();
  swept_.clear();
  return take_expired();
}

unsigned count_cast(History& history, const at::TensorBase& tensor, DType to, report::SiteId site) {
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
