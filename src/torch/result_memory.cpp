#include "torch/large_blocks.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "torch/process_wide.h"

namespace habana_mp {
namespace {

// What is kept for reuse at most: the results of a step or two, not another model.
constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

// Pages are asked for in this size, and so are blocks: a result some elements larger than the last
// one finds a block.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Block {
  c10::DataPtr memory;
  std::size_t size;
  bool fresh;
};

// Kept for reuse, the last freed first.
class Blocks final : public c10::Allocator {
 public:
  std::mutex mutex;

  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    Block* block = take(size).release();
    if (block == nullptr) block = map(size);
    return {block->memory.get(), block, keep, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  void release() {
    std::list<std::unique_ptr<Block>> kept;
    const std::lock_guard lock(mutex);
    kept.swap(kept_);
    kept_bytes_ = 0;
  }

  static void keep(void* context) {
    process_wide<Blocks>().put(std::unique_ptr<Block>(static_cast<Block*>(context)));
  }

 private:
  std::unique_ptr<Block> take(std::size_t size) {
    const std::lock_guard lock(mutex);
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if ((*it)->size != size) continue;
      std::unique_ptr<Block> block = std::move(*it);
      kept_.erase(it);
      kept_bytes_ -= size;
      block->fresh = false;
      return block;
    }
    return nullptr;
  }

  void put(std::unique_ptr<Block> block) {
    std::list<std::unique_ptr<Block>> dropped;  // freed after the lock
    const std::lock_guard lock(mutex);
    kept_bytes_ += block->size;
    kept_.push_front(std::move(block));
    while (kept_bytes_ > kKeptBytes) {
      kept_bytes_ -= kept_.back()->size;
      dropped.splice(dropped.end(), kept_, std::prev(kept_.end()));
    }
  }

  static Block* map(std::size_t size) {
    auto block = std::make_unique<Block>(Block{c10::GetCPUAllocator()->allocate(size), size, true});
    // Advice: where the system has no huge pages to give, the block has small ones.
    const auto begin = reinterpret_cast<std::uintptr_t>(block->memory.get());
    const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const std::uintptr_t last = (begin + size) / kHugePage * kHugePage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
    return block.release();
  }

  std::list<std::unique_ptr<Block>> kept_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace

c10::Allocator* large_blocks() { return &process_wide<Blocks>(); }

bool is_fresh(const c10::DataPtr& data) {
  const auto* block =
      data.get_deleter() == Blocks::keep ? static_cast<const Block*>(data.get_context()) : nullptr;
  return block != nullptr && block->fresh;
}

void release_large_blocks() { process_wide<Blocks>().release(); }

}  // namespace habana_mp
