// What the report remembers of tensors: which op made one, which ops it went through since it was
// last cast, and how often it was cast as it is. Kept by memory, as views of a tensor are the same
// numbers. It keeps no tensor alive.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policy/dtype.h"
#include "report/site.h"

namespace habana_mp {

struct History {
  explicit History(c10::weak_intrusive_ptr<c10::StorageImpl> of) : memory(std::move(of)) {}

  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  report::SiteId maker = report::kNone;
  report::PathId path = report::kNone;
  std::uint64_t path_ns = 0;  // of the cast that the path began with

  // The last cast, and what the tensor was like then.
  DType cast_to = DType::Other;
  report::SiteId first = report::kNone;
  unsigned times = 0;
  std::uint32_t version = 0;
  std::uint64_t epoch = 0;  // of the weight cache: fused optimizers do not move the version
  const void* data = nullptr;
  std::int64_t numel = 0;
};

// Whoever calls holds the observer's lock.
class TensorHistories {
 public:
  // Null where nothing is known of the tensor.
  History* find(const at::TensorBase& tensor);
  History* find(const c10::StorageImpl* memory);
  // Null for a tensor without memory of its own kind.
  History* get(const at::TensorBase& tensor);
  // Those of memory that is gone, or all: to be freed without the lock, as memory that Python has
  // seen waits for the GIL.
  std::vector<History> take_expired() { return std::exchange(expired_, {}); }
  std::vector<History> take_all();

 private:
  void sweep_some();

  std::unordered_map<const c10::StorageImpl*, History> by_memory_;
  std::vector<const History*> swept_;  // the same, in the order in which they are looked at
  std::size_t next_ = 0;
  std::vector<History> expired_;
};

// Counts a cast of the tensor: how many there were of it as it is now, to the same dtype.
unsigned count_cast(History& history, const at::TensorBase& tensor, DType to, report::SiteId site);

}  // namespace habana_mp
