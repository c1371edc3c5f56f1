// Facts about tensors, kept by their memory, as views of a tensor are the same numbers. It keeps no
// tensor alive: an entry whose memory is gone goes when others come.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

namespace habana_mp {

// Null for a tensor without memory of its own kind.
inline const c10::StorageImpl* memory_of(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// Whoever calls holds the lock of what it is a part of.
template <typename Fact>
class ByMemory {
 public:
  struct Kept {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // so nothing else can have its address
    Fact fact{};
  };
  using Gone = std::vector<Kept>;

  // Null where nothing is known.
  Fact* find(const c10::StorageImpl* memory) {
    const auto found = kept_.find(memory);
    return found == kept_.end() ? nullptr : &found->second.fact;
  }
  Fact* find(const at::TensorBase& tensor) { return find(memory_of(tensor)); }

  // The same, made where there is none. Null for a tensor without memory.
  Fact* get(const at::TensorBase& tensor) {
    const c10::StorageImpl* memory = memory_of(tensor);
    if (memory == nullptr) return nullptr;
    if (Fact* known = find(memory)) return known;
    sweep_some();
    Kept& made =
        kept_.try_emplace(memory, Kept{tensor.storage().getWeakStorageImpl()}).first->second;
    swept_.push_back(&made);
    return &made.fact;
  }

  template <typename Visit>
  void for_each_living(const Visit& visit) const {
    for (const auto& [memory, kept] : kept_) {
      if (!kept.memory.expired()) visit(kept.fact);
    }
  }

  // Those of memory that is gone, or all: to be freed without the lock, as memory that Python has
  // seen waits for the GIL.
  Gone take_expired() { return std::exchange(expired_, {}); }
  Gone take_all() {
    for (auto& [memory, kept] : kept_) expired_.push_back(std::move(kept));
    kept_.clear();
    swept_.clear();
    return take_expired();
  }

 private:
  // So many are looked at for each new one, so that of those kept about one in eight is of memory
  // that is gone. What stands for such memory lies between the blocks of the heap, where few of
  // them can keep gigabytes from being used again.
  static constexpr int kSwept = 8;

  void sweep_some() {
    for (int i = 0; i < kSwept && !swept_.empty(); ++i) {
      if (next_ >= swept_.size()) next_ = 0;
      if (!swept_[next_]->memory.expired()) {
        ++next_;
        continue;
      }
      const auto gone = kept_.find(swept_[next_]->memory._unsafe_get_target());
      expired_.push_back(std::move(gone->second));
      kept_.erase(gone);
      swept_[next_] = swept_.back();
      swept_.pop_back();
    }
  }

  std::unordered_map<const c10::StorageImpl*, Kept> kept_;
  std::vector<const Kept*> swept_;  // the same, in the order in which they are looked at
  std::size_t next_ = 0;
  Gone expired_;
};

}  // namespace habana_mp
