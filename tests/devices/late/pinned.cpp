// Pinned memory of the host. A copy that is queued holds what it will read or write.
#include <ATen/core/CachingHostAllocator.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "memory.h"
#include "streams.h"

namespace late {
namespace {

struct Pinned final : at::HostAllocator {
  std::mutex mutex;
  std::map<const char*, std::size_t> blocks;

  static void release(void* memory);
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
    std::memset(memory, kGarbage, bytes);
    const std::lock_guard lock(mutex);
    blocks[static_cast<char*>(memory)] = bytes + 1;
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

Pinned& pinned() {
  static auto& it = *new Pinned;
  return it;
}

void Pinned::release(void* memory) {
  {
    const std::lock_guard lock(pinned().mutex);
    pinned().blocks.erase(static_cast<char*>(memory));
  }
  std::free(memory);
}

const bool pins = (at::setHostAllocator(kType, &pinned()), true);

}  // namespace

c10::Allocator& pinned_memory() { return pinned(); }

bool is_pinned(const void* address) {
  const std::lock_guard lock(pinned().mutex);
  auto after = pinned().blocks.upper_bound(static_cast<const char*>(address));
  if (after == pinned().blocks.begin()) return false;
  --after;
  return address < after->first + after->second;
}

}  // namespace late
