// Memory of tensors: empty ones, views, and what changes a storage.
#include "tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "memory.h"
#include "streams.h"

namespace late {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// The device that an op is asked for.
c10::Device chosen(std::optional<at::Device> device) {
  return device && device->has_index() ? *device : c10::Device(kType, current_device());
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_generic(sizes, &memory(), kKeys, type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  return empty_tensor(sizes, strides, type.value_or(at::kFloat), chosen(device).index());
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat> format) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) impl.empty_tensor_restride(*format);
  const std::size_t needed =
      static_cast<std::size_t>(self.storage_offset() + self.numel()) * self.itemsize();
  if (needed > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  }
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", [](at::Tensor& self, at::Storage source) -> at::Tensor& {
    const auto size = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
    return at::native::set_storage_cpu_(self, std::move(source), 0, size, {});
  });
  m.impl("record_stream", [](at::Tensor& self, c10::Stream stream) {
    memory().recordStream(self.storage().data_ptr(), stream);
  });
}

const at::ThreadLocalState& clean_state() {
  static const at::ThreadLocalState& state = *new at::ThreadLocalState;
  return state;
}
const bool kept = (clean_state(), true);  // as it is when the library is loaded

}  // namespace

at::Tensor empty_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                        c10::DeviceIndex device) {
  const c10::DeviceGuard guard(c10::Device(kType, device));
  return at::detail::empty_strided_generic(sizes, strides, &memory(), kKeys, type);
}

at::Tensor for_kernel(const at::Tensor& tensor) {
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  auto* bytes = static_cast<char*>(readable(storage.data()));
  if (bytes != nullptr)
    bytes += static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  return at::from_blob(bytes, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

Unseen::Unseen() : guard(clean_state()) {
  // hmp.disable_casts: torch computes some sizes in Python, by functions that convert has patched.
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastIPU, false);
}

}  // namespace late
