// Which tensors are weights to the cache, who holds them, and their memory: who owns it, who shares
// it, and what is in it. Every use of a copy asks of the memory, so that is inline. Knows nothing
// of copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/torch_private.h"
#include "weights/offloaded_memory.h"

namespace habana_mp {

// The fewest numbers of a weight. Measured: of fewer than 4096, a cast costs no more than the
// look-up and the tensor over the copy. Convolutions gain more where they are packed: 6 to 14 us of
// 19 to 95 at 128 to 1728 numbers.
constexpr std::int64_t smallest_weight(std::int64_t dims) { return dims < 4 ? 4096 : 256; }

// Whether a tensor is a parameter of a model, whatever its size: a leaf that requires grad, or a
// torch.nn.Parameter, or a view of one that has no graph.
bool is_model_weight(const at::Tensor& tensor);
const at::TensorBase& viewed_by(const at::TensorBase& tensor);  // or itself
// Whether an ordinary tensor (cast/numbers.h) is a weight.
bool may_be_weight(const at::Tensor& tensor);
// The same of any tensor.
bool is_weight(const at::Tensor& tensor);

// How often a weight is held if nobody but torch holds it. Under no lock: it may wait for the GIL.
std::size_t known_holds(const at::Tensor& weight);
// Whether somebody else does, who may write to it, such as a DLPack capsule. The caller has it from
// its Python object and holds it no further.
inline bool is_held_elsewhere(const at::Tensor& weight, std::size_t known) {
  return static_cast<std::size_t>(weight.use_count()) > known;
}

// How torch frees a part of a storage, which is what it makes of a mapped file: set by
// learn_slices().
inline c10::DeleterFnPtr slices_deleter = nullptr;

// Takes a part of a storage, by which such memory is known for torch's own.
inline void learn_slices(const c10::StorageImpl& slice) {
  slices_deleter = slice.data_ptr().get_deleter();
}

// Memory that torch has for itself, whether allocated, read from a file or mapped: whoever else
// writes to it is a tensor, which is seen (Shared, Alias). What was given away as a NumPy array
// cannot be resized any more. What torch.load has read never could, and names no allocator.
inline bool is_own_memory(const at::Tensor& weight) {
  const c10::StorageImpl& storage = *weight.storage().unsafeGetStorageImpl();
  if (!weight.is_cpu()) return storage.resizable();
  const c10::DeleterFnPtr deleter = storage.data_ptr().get_deleter();
  if (deleter == slices_deleter) return true;
  // Compared as it was read: offload() and restore() set another meanwhile.
  return (deleter == c10::GetCPUAllocator()->raw_deleter() || deleter == &free_offloaded) &&
         (storage.resizable() || storage.allocator() == nullptr);
}

// Whether a tensor other than `weight` holds the memory, or Python code does.
inline bool is_shared(const at::Tensor& weight) {
  const c10::Storage& storage = weight.storage();
  if (storage.use_count() == 1) return false;
  // A storage that Python has once looked at keeps its Python object, which counts as a user.
  return storage.use_count() > 2 ||
         !torch_private::is_sole_owner_of_python_object(*storage.unsafeGetStorageImpl());
}

// Where the samples of a weight lie, four bytes each, in ascending order: spread over it, the last
// number too. Those of a low weight may lie in the middle of such four.
inline constexpr std::int64_t kSamples = 17;
using Sample = std::uint32_t;
inline std::array<const std::byte*, kSamples> samples_in(const at::Tensor& weight) {
  const auto* memory = static_cast<const std::byte*>(weight.const_data_ptr());
  const std::int64_t bytes = static_cast<std::int64_t>(weight.nbytes());
  const std::int64_t step =
      weight.numel() / (kSamples - 1) * static_cast<std::int64_t>(weight.itemsize());
  std::array<const std::byte*, kSamples> samples{};
  for (std::int64_t i = 0; i < kSamples - 1; ++i) samples[i] = memory + i * step;
  samples.back() = memory + bytes - sizeof(Sample);
  return samples;
}

// A fingerprint of them.
inline std::uint64_t samples_of(const at::Tensor& weight) {
  if (!weight.is_cpu()) return 0;
  const auto samples = samples_in(weight);
  const auto read = [](const std::byte* at) {
    Sample sample = 0;
    std::memcpy(&sample, at, sizeof(sample));
    return sample;
  };
  std::uint64_t hash = read(samples.back());
  // Not one after the other in memory's time: the loads do not wait for each other.
  for (std::int64_t i = 0; i < kSamples - 1; ++i) {
    hash = (hash ^ read(samples[i])) * 0x9E3779B97F4A7C15U;
  }
  return hash;
}

// Drops the pages of an offloaded weight but for those that every use of its copy reads.
inline void drop_unsampled_pages(const at::Tensor& weight) {
  const auto samples = samples_in(weight);
  std::array<const void*, kSamples> kept{};
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = samples[i];
  drop_pages(*weight.storage().unsafeGetStorageImpl(), kept);
}

}  // namespace habana_mp
