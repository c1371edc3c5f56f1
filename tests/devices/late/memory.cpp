#include "memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "streams.h"

namespace late {
namespace {

constexpr std::size_t kBytes =
    std::size_t{8} << 30;  // of a device, of which nothing is there before it is written

struct Arena {
  char* guarded = nullptr;
  char* open = nullptr;
  std::size_t used = 0;

  Arena() {
    const int file = memfd_create("late device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kBytes) != 0) std::abort();
    const auto map = [&](int protection) {
      void* mapped = mmap(nullptr, kBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      if (mapped == MAP_FAILED) std::abort();
      return static_cast<char*>(mapped);
    };
    guarded = map(PROT_NONE);
    open = map(PROT_READ | PROT_WRITE);
    close(file);
  }
  bool holds(const void* address) const { return address >= guarded && address < guarded + kBytes; }
};

std::array<Arena, kDevices>& arenas() {
  static auto& all = *new std::array<Arena, kDevices>;
  return all;
}

struct sigaction before;  // Python's, if it prints where it was

// Says what has happened, then lets the signal end the process.
void report_access(int number, siginfo_t* info, void*) {
  for (const Arena& arena : arenas()) {
    if (!arena.holds(info->si_addr)) continue;
    static constexpr char kText[] =
        "late device: the host has read or written memory of the device\n";
    static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
  }
  sigaction(number, &before, nullptr);
}

struct Block {
  char* data;
  std::size_t size;
  c10::Stream stream;
  std::uint64_t pool;  // 0: not of a capture
  std::vector<c10::Stream> used_on{};
};

struct Allocator final : c10::DeviceAllocator {
  using Key = std::tuple<c10::DeviceIndex, c10::StreamId, std::uint64_t, std::size_t>;
  struct Waiting {
    Block* block;
    std::vector<MarkPtr> marks;
  };

  std::mutex mutex;
  std::map<Key, std::vector<Block*>> free;
  std::list<Waiting> waiting;
  std::array<c10::CachingAllocator::Stat, kDevices> counts;

  static Key key(const Block& block) {
    return {block.stream.device_index(), block.stream.id(), block.pool, block.size};
  }

  // In the order of the stream: what was queued there before has read the block then.
  static void fill(const Block& block) {
    const auto task = [data = readable(block.data), size = block.size] {
      std::memset(data, kGarbage, size);
    };
    block.pool == 0 ? enqueue_now(block.stream, task) : enqueue(block.stream, task);
  }

  // With the mutex. It may be given out again to its own stream alone, and is filled then: a
  // program may have that stream wait first. Where the stream is current, it is filled at once.
  // Memory of a graph keeps what is in it between replays.
  void give_back(Block* block) {
    const auto capture = capture_of(block->stream);
    if (current_stream(block->stream.device_index()) == block->stream &&
        (block->pool == 0 || (capture && capture->pool == block->pool))) {
      fill(*block);
    }
    free[key(*block)].push_back(block);
  }

  void look_after_waiting() {
    std::erase_if(waiting, [&](const Waiting& each) {
      if (!std::ranges::all_of(each.marks, has_passed)) return false;
      give_back(each.block);
      return true;
    });
  }

  c10::DataPtr take(std::size_t bytes, c10::DeviceIndex device) {
    const c10::Device where(kType, device);
    if (bytes == 0) return {nullptr, where};
    const c10::Stream stream = current_stream(device);
    const auto capture = capture_of(stream);
    const std::lock_guard lock(mutex);
    if (!any_capture()) look_after_waiting();
    Block wanted{nullptr, std::bit_ceil(std::max<std::size_t>(bytes, 512)), stream,
                 capture ? capture->pool : 0};
    auto& kept = free[key(wanted)];
    Block* block = nullptr;
    if (!kept.empty()) {
      block = kept.back();
      kept.pop_back();
      fill(*block);
    } else {
      Arena& arena = arenas()[device];
      TORCH_CHECK_WITH(OutOfMemoryError, arena.used + wanted.size <= kBytes,
                       "late device: out of memory");
      wanted.data = arena.guarded + arena.used;
      arena.used += wanted.size;
      block = new Block(wanted);
      fill(*block);
    }
    counts[device].increase(block->size);
    return {block->data, block, &release, where};
  }

  static void release(void* context);

  c10::DataPtr allocate(std::size_t bytes) override { return take(bytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    enqueue(current_stream(current_device()),
            [to = readable(to), from = readable(from), bytes] { std::memcpy(to, from, bytes); });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &release) return;
    auto* block = static_cast<Block*>(data.get_context());
    if (block == nullptr || block->stream == stream) return;
    const std::lock_guard lock(mutex);
    if (std::ranges::find(block->used_on, stream) == block->used_on.end())
      block->used_on.push_back(stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0] = counts[device];  // of all pools
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex);
    counts[device].reset_peak();
  }
};

Allocator& allocator() {
  static auto& it = *new Allocator;
  return it;
}

void Allocator::release(void* context) {
  auto* block = static_cast<Block*>(context);
  Allocator& all = allocator();
  const std::lock_guard lock(all.mutex);
  all.counts[block->stream.device_index()].decrease(block->size);
  if (block->used_on.empty()) return all.give_back(block);
  Waiting each{block, {}};
  for (const c10::Stream& stream : std::exchange(block->used_on, {})) {
    if (!capture_of(stream)) each.marks.push_back(record(stream));
  }
  all.waiting.push_back(std::move(each));
}

const bool allocates = [] {
  c10::SetAllocator(kType, &allocator());
  arenas();
  struct sigaction action{};
  action.sa_sigaction = report_access;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &before);
  return true;
}();

}  // namespace

c10::DeviceAllocator& memory() { return allocator(); }

c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex device) {
  return allocator().take(bytes, device);
}

void* readable(const void* device_address) {
  if (device_address == nullptr) return nullptr;
  for (const Arena& arena : arenas()) {
    if (arena.holds(device_address))
      return arena.open + (static_cast<const char*>(device_address) - arena.guarded);
  }
  TORCH_CHECK(false, "late device: a kernel is given an address that is not the device's");
}

std::uint64_t new_pool() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace late
