// What torch asks of a device: which one and which stream is current, events, hooks and graphs.
#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>  // since torch 2.13
#endif
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstring>

#include "memory.h"
#include "streams.h"

namespace late {
namespace {

using Event = MarkPtr;  // as it was recorded last

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    set_current_device(device.index());
    return before;
  }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index() < 0 ? current_device() : device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return new_stream(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return new_stream(device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override { return is_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  // torch 2.11 and 2.12 do not ask.
  virtual bool isStreamCapturing(const c10::Stream& stream) const {
    return capture_of(stream) != nullptr;
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    synchronize_device(device < 0 ? current_device() : device);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = late::record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait(stream, *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_done(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) synchronize(*static_cast<Event*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    return 1e3 * ((*static_cast<Event*>(second))->seconds - (*static_cast<Event*>(first))->seconds);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    memory().recordStream(data, stream);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
    const c10::DeviceIndex device = impl.device().index();
    c10::DataPtr made = allocate(bytes, device);
    if (const std::size_t kept = std::min(bytes, impl.nbytes()); kept > 0) {
      enqueue(current_stream(device), [to = readable(made.get()), from = readable(impl.data()),
                                       kept] { std::memcpy(to, from, kept); });
    }
    impl.set_data_ptr_noswap(std::move(made));
    impl.set_nbytes(bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

#if __has_include(<ATen/core/GraphImplInterface.h>)
// A captured graph runs in one piece on the stream that it is replayed on.
struct Graph final : at::GraphImplInterface {
  explicit Graph(const at::GraphImplArgs&) {}
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override {
    TORCH_CHECK(!capture_, "late device: the graph has been captured");
    pool_ = pool.first != 0 ? pool : c10::MempoolId_t{new_pool(), 0};
    auto capture =
        std::make_shared<Capture>(Capture{pool_.first, current_stream(current_device()), {}});
    begin_capture(capture);
    capture_ = std::move(capture);
  }
  void capture_end() override { end_capture(); }
  void instantiate() override {}
  void replay() override {
    TORCH_CHECK(capture_, "late device: nothing was captured");
    enqueue(current_stream(capture_->origin.device_index()), [capture = capture_] {
      for (const Task& task : capture->tasks) task();
    });
  }
  void reset() override { capture_ = nullptr; }
  c10::MempoolId_t pool() const override { return pool_; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

 private:
  std::shared_ptr<Capture> capture_;
  c10::MempoolId_t pool_{0, 0};
};
#endif

}  // namespace late

#if __has_include(<ATen/core/GraphImplInterface.h>)
namespace at {
C10_REGISTER_CLASS(GraphImplRegistry, LATE, late::Graph);
}
#endif
