// Copies on a device, between the two of them, and between one and the host.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <chrono>
#include <thread>

#include "memory.h"
#include "streams.h"
#include "tensors.h"

namespace late {
namespace {

// The host's tensor as a kernel may use it later: pinned memory as it is, and held until then; of
// any other the bytes are read now.
bool may_be_late(const at::Tensor& host, const at::Tensor& device, bool non_blocking) {
  return non_blocking && host.dtype() == device.dtype() && is_pinned(host.storage().data());
}

at::Tensor held_alias(const at::Tensor& host) {
  return at::from_blob(
      const_cast<void*>(host.const_data_ptr()), host.sizes(), host.strides(),
      [held = host.storage()](void*) {}, host.options());
}

void to_device(const at::Tensor& host, const at::Tensor& device, bool non_blocking) {
  const c10::Stream stream = current_stream(device.device().index());
  const bool late_read = may_be_late(host, device, non_blocking);
  const at::Tensor source =
      late_read ? held_alias(host) : host.to(device.scalar_type(), false, true);
  enqueue(stream, [source, target = for_kernel(device)] { target.copy_(source); });
  // torch waits after every copy that is not asked to be asynchronous, and CUDA has read memory
  // that is not pinned when it returns.
  if (!non_blocking) synchronize(stream);
}

void to_host(const at::Tensor& device, const at::Tensor& host, bool non_blocking) {
  const c10::Stream stream = current_stream(device.device().index());
  if (may_be_late(host, device, non_blocking)) {
    enqueue(stream,
            [source = for_kernel(device), target = held_alias(host)] { target.copy_(source); });
    return;
  }
  TORCH_CHECK(!capture_of(stream),
              "late device: the host waits for a copy while a graph is being captured");
  enqueue(stream,
          [source = for_kernel(device), target = held_alias(host)] { target.copy_(source); });
  synchronize(stream);
}

// As CUDA does: on the stream of the source, between an event before it and one after it.
void between(const at::Tensor& from, const at::Tensor& to) {
  const c10::Stream source = current_stream(from.device().index());
  const c10::Stream target = current_stream(to.device().index());
  if (source != target) wait(source, record(target));
  enqueue(source, [from = for_kernel(from), to = for_kernel(to)] { to.copy_(from); });
  if (source != target) wait(target, record(source));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const Unseen unseen;
  const at::Tensor source = from.expand_as(to);
  if (is_late(from) && is_late(to)) {
    ++counts().kernels;
    between(source, to);
    return to;
  }
  ++counts().copies;
  is_late(to) ? to_device(source, to, non_blocking) : to_host(source, to, non_blocking);
  return to;
}

at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& self) {
  const Unseen unseen;
  const c10::Stream stream = current_stream(self.device().index());
  synchronize(stream);
  ++counts().copies;
  return for_kernel(self).item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_and_resize);
  m.impl("_local_scalar_dense", item);
}

// What tests ask of the device. Numbers are those since reset().
TORCH_LIBRARY(late, m) {
  m.def("set_delays", [](std::int64_t seed, std::int64_t microseconds) {
    set_delays(static_cast<std::uint64_t>(seed), microseconds);
  });
  m.def("set_lazy", [](bool lazy) { set_lazy(current_stream(current_device()), lazy); });
  m.def("delayed", [] { return delayed(current_stream(current_device())); });
  m.def("kernels", [] { return counts().kernels.load(); });
  m.def("copies", [] { return counts().copies.load(); });
  m.def("waits", [] { return counts().waits.load(); });
  m.def("reset", [] { counts().kernels = counts().copies = counts().waits = 0; });
  // Keeps the current stream busy.
  m.def("sleep", [](std::int64_t microseconds) {
    enqueue(current_stream(current_device()),
            [=] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
  });
}

}  // namespace
}  // namespace late
