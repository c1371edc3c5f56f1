// Whether the storage of a tensor holds all of its elements. Anybody may free or shrink a storage
// under its tensors (untyped_storage().resize_(0), as FSDP does with weights that it has sharded
// again), and torch itself does not look before it reads.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstddef>

namespace habana_mp {

// RuntimeError for a tensor that does not fit its storage.
[[noreturn]] void refuse_storage(const at::TensorBase& tensor, std::size_t needed);

// Of its storage, from the beginning to the last element.
inline std::size_t bytes_needed(const at::TensorBase& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t elements = tensor.storage_offset() + tensor.numel();
  if (!tensor.is_non_overlapping_and_dense()) {
    elements = tensor.storage_offset() + 1;
    for (std::int64_t i = 0; i < tensor.dim(); ++i) {
      elements += (tensor.size(i) - 1) * tensor.stride(i);
    }
  }
  return static_cast<std::size_t>(elements) * tensor.itemsize();
}

// Whether the numbers of a tensor are there to be read. A tensor that wraps others, and one of a
// compiler, has a storage of the right size at no address.
inline bool holds_numbers(const at::TensorBase& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const std::size_t needed = bytes_needed(tensor);
  const at::Storage& storage = tensor.storage();
  return needed == 0 || (storage.data() != nullptr && storage.nbytes() >= needed);
}

// Asked before anything of the tensor is read or written. Not for tensors without memory, such as
// meta tensors.
inline void check_storage(const at::TensorBase& tensor) {
  const std::size_t needed = bytes_needed(tensor);
  if (tensor.storage().nbytes() < needed) refuse_storage(tensor, needed);
}

}  // namespace habana_mp
