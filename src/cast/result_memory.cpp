#include "cast/result_memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "cast/pages.h"

namespace habana_mp {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

// Small blocks: powers of two, kept by the thread that frees them.
constexpr std::size_t kAlignment = 64;  // c10's
constexpr std::size_t kLargestSmall = 8192;
constexpr int kClasses = std::countr_zero(kLargestSmall / kAlignment) + 1;
constexpr int kKeptPerClass = 16;

// Lies before its memory.
struct alignas(kAlignment) SmallBlock {
  SmallBlock* next;
  int size_class;
  void* memory() { return this + 1; }
};
static_assert(sizeof(SmallBlock) == kAlignment);

int class_of(std::size_t bytes) {
  return bytes <= kAlignment ? 0 : std::bit_width((bytes - 1) / kAlignment);
}

struct SmallBlocks {
  std::array<SmallBlock*, kClasses> free{};
  std::array<int, kClasses> count{};
  bool ended = false;

  ~SmallBlocks() {
    ended = true;  // tensors that other thread-local objects hold may be freed later
    for (SmallBlock* block : free) {
      while (block != nullptr) std::free(std::exchange(block, block->next));
    }
  }
};
thread_local SmallBlocks small_blocks;

[[maybe_unused]] void keep_small(void* context) {
  auto* block = static_cast<SmallBlock*>(context);
  SmallBlocks& blocks = small_blocks;
  const auto index = static_cast<std::size_t>(block->size_class);
  if (blocks.ended || blocks.count[index] >= kKeptPerClass) {
    std::free(block);
    return;
  }
  block->next = std::exchange(blocks.free[index], block);
  ++blocks.count[index];
}

[[maybe_unused]] SmallBlock* take_small(std::size_t bytes) {
  const int size_class = class_of(bytes);
  SmallBlocks& blocks = small_blocks;
  const auto index = static_cast<std::size_t>(size_class);
  SmallBlock* block = blocks.ended ? nullptr : blocks.free[index];
  if (block != nullptr) {
    blocks.free[index] = block->next;
    --blocks.count[index];
    return block;
  }
  void* memory = std::aligned_alloc(kAlignment, sizeof(SmallBlock) + (kAlignment << size_class));
  if (memory == nullptr) throw std::bad_alloc();
  return new (memory) SmallBlock{nullptr, size_class};
}

// Large blocks. From here on malloc maps every allocation anew (the upper bound of glibc's
// M_MMAP_THRESHOLD).
constexpr std::size_t kSmallestLarge = std::size_t{32} << 20;

// The top of malloc's heap, where a result of this size may lie, is given back when it is freed.
constexpr std::size_t kSmallestOfCall = std::size_t{1} << 20;

// In each step malloc gives a model's gradients back to the system and gets the pages anew, of
// whatever size they are; blocks that are kept are memory that activations cannot have. Measured:
// from here on it pays.
constexpr std::size_t kSmallestOfStep = std::size_t{16} << 20;

// What is kept for reuse at most: it is memory that other tensors cannot have.
constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

// Of huge pages, where the system has them to give.
struct LargeBlock {
  void* memory;
  std::size_t size;
  bool fresh = true;
  bool kept = true;  // when it is freed

  explicit LargeBlock(std::size_t bytes) : size(bytes) {
    void* mapped =
        mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    auto* begin = static_cast<std::byte*>(mapped);
    const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
    if (before > 0) munmap(begin, before);
    munmap(begin + before + size, kHugePage - before);
    memory = begin + before;
    madvise(memory, size, MADV_HUGEPAGE);
  }
  ~LargeBlock() { munmap(memory, size); }
  LargeBlock(const LargeBlock&) = delete;
  LargeBlock& operator=(const LargeBlock&) = delete;
};

// Kept for reuse, the last freed first.
class LargeBlocks {
 public:
  ForkSafeMutex mutex;

  // A block of up to twice the size, as float32 gradients are to copies.
  std::unique_ptr<LargeBlock> take(std::size_t size) {
    const std::lock_guard lock(mutex);
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if ((*it)->size < size || (*it)->size > 2 * size) continue;
      std::unique_ptr<LargeBlock> block = std::move(*it);
      kept_.erase(it);
      bytes_ -= block->size;
      block->fresh = false;
      return block;
    }
    return nullptr;
  }

  void keep(std::unique_ptr<LargeBlock> block) {
    Blocks freed;  // after the lock
    const std::lock_guard lock(mutex);
    if (!keeps_) return;
    bytes_ += block->size;
    kept_.push_front(std::move(block));
    while (bytes_ > kKeptBytes) {
      bytes_ -= kept_.back()->size;
      freed.splice(freed.end(), kept_, std::prev(kept_.end()));
    }
  }

  void release() {
    Blocks freed;
    const std::lock_guard lock(mutex);
    freed.swap(kept_);
    bytes_ = 0;
  }

  void set_keeps(bool keeps) {
    {
      const std::lock_guard lock(mutex);
      keeps_ = keeps;
    }
    if (!keeps) release();
  }

 private:
  using Blocks = std::list<std::unique_ptr<LargeBlock>>;
  Blocks kept_;
  std::size_t bytes_ = 0;
  bool keeps_ = true;
};

void keep_large(void* context) {
  std::unique_ptr<LargeBlock> block(static_cast<LargeBlock*>(context));
  if (block->kept) process_wide<LargeBlocks>().keep(std::move(block));
}

class ResultMemory final : public c10::Allocator {
 public:
  // Blocks are mapped from `smallest_mapped` bytes on, and taken from those that are kept already
  // from `smallest_taken` on.
  ResultMemory(bool kept, std::size_t smallest_taken, std::size_t smallest_mapped)
      : kept_(kept), smallest_taken_(smallest_taken), smallest_mapped_(smallest_mapped) {}

  c10::DataPtr allocate(std::size_t bytes) override {
#ifndef __SANITIZE_ADDRESS__  // memory that is reused hides its mistakes
    if (bytes <= kLargestSmall) {
      SmallBlock* block = take_small(bytes);
      return {block->memory(), block, keep_small, kCpu};
    }
#endif
    if (bytes < smallest_taken_) return c10::GetCPUAllocator()->allocate(bytes);
    const std::size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    LargeBlock* block = process_wide<LargeBlocks>().take(size).release();
    if (block == nullptr && bytes < smallest_mapped_) {
      return c10::GetCPUAllocator()->allocate(bytes);
    }
    if (block == nullptr) block = new LargeBlock(size);
    block->kept = kept_;
    return {block->memory, block, keep_large, kCpu};
  }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  bool kept_;
  std::size_t smallest_taken_, smallest_mapped_;
};

}  // namespace

c10::Allocator* result_memory(Lifetime lifetime) {
  // Never destroyed: tensors may outlive them.
  static const std::array memory{new ResultMemory(true, kSmallestOfCall, kSmallestOfCall),
                                 new ResultMemory(false, kSmallestLarge, kSmallestLarge),
                                 new ResultMemory(true, kSmallestOfStep / 2, kSmallestOfStep),
                                 new ResultMemory(false, kSmallestOfCall, kSmallestOfCall)};
  return memory[static_cast<std::size_t>(lifetime)];
}

#ifndef __SANITIZE_ADDRESS__
void* allocate_node(std::size_t bytes) { return take_small(bytes)->memory(); }
void free_node(void* node) { keep_small(static_cast<SmallBlock*>(node) - 1); }
#else
void* allocate_node(std::size_t bytes) { return ::operator new(bytes); }
void free_node(void* node) { ::operator delete(node); }
#endif

bool is_fresh(const c10::DataPtr& data) {
  return data.get_deleter() == keep_large &&
         static_cast<const LargeBlock*>(data.get_context())->fresh;
}

void release_result_memory() { process_wide<LargeBlocks>().release(); }
void keep_result_memory(bool keep) { process_wide<LargeBlocks>().set_keeps(keep); }

}  // namespace habana_mp
