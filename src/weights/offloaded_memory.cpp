#include "weights/offloaded_memory.h"

#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/process_wide.h"
#include "cast/pages.h"
#include "cast/result_memory.h"

namespace habana_mp {
namespace {

// Of Linux 5.4 and 5.14; older C libraries lack the names, and older systems refuse them, which
// costs memory or speed and no numbers.
constexpr int kPageOut = 21;
constexpr int kPopulateRead = 22;

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;

struct Offloaded {
  explicit Offloaded(const at::Tensor& weight)
      : pages(pages_of(*weight.storage().unsafeGetStorageImpl())),
        storage(weight.storage().getWeakStorageImpl()) {}
  const std::span<std::byte> pages;
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  c10::DataPtr memory;  // as the allocator gave it
  std::atomic<bool> was_cast = false;
};

Offloaded& context_of(const c10::StorageImpl& storage) {
  return *static_cast<Offloaded*>(storage.data_ptr().get_context());
}

struct Registry {
  ForkSafeMutex mutex;
  ForkSafeMutex moving;
  std::unordered_set<Offloaded*> all;

  // Whoever offloads weights wants the memory: meanwhile none is kept for the results of casts.
  void add(Offloaded& offloaded) {
    const std::lock_guard lock(mutex);
    all.insert(&offloaded);
    if (all.size() == 1) keep_result_memory(false);
  }
  void remove(Offloaded& offloaded) {
    const std::lock_guard lock(mutex);
    all.erase(&offloaded);
    if (all.empty()) keep_result_memory(true);
  }
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> alive() {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
    const std::lock_guard lock(mutex);
    for (const Offloaded* each : all) {
      if (auto storage = each->storage.lock(); storage.defined())
        storages.push_back(std::move(storage));
    }
    return storages;
  }
};

Registry& registry() { return process_wide<Registry>(); }

std::byte* page_below(const void* address) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(address) &
                                      ~(page_size() - 1));
}

std::byte* page_above(const void* address) {
  return page_below(static_cast<const std::byte*>(address) + page_size() - 1);
}

[[noreturn]] void raise_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

ForkSafeMutex& offloading_mutex() { return registry().moving; }

void free_offloaded(void* context) {
  const std::unique_ptr<Offloaded> offloaded(static_cast<Offloaded*>(context));
  registry().remove(*offloaded);
  const std::span<std::byte> pages = offloaded->pages;
  if (mmap(pages.data(), pages.size(), kReadWrite, kAnonymous | MAP_FIXED, -1, 0) == MAP_FAILED) {
    // Rather lost than in the allocator's hands as pages of a file.
    static_cast<void>(offloaded->memory.release_context());
  }
}

std::span<std::byte> pages_of(const c10::StorageImpl& storage) {
  if (is_offloaded(storage)) return context_of(storage).pages;
  auto* data = static_cast<std::byte*>(storage.data_ptr().get());
  std::byte* begin = page_above(data);
  std::byte* end = page_below(data + storage.nbytes());
  if (data == nullptr || begin >= end) return {};
  return {begin, end};
}

void write_pages(const c10::StorageImpl& storage, int file, std::size_t offset) {
  const std::span<std::byte> pages = pages_of(storage);
  for (std::size_t done = 0; done < pages.size();) {
    const ssize_t written =
        pwrite(file, pages.data() + done, pages.size() - done, static_cast<off_t>(offset + done));
    if (written < 0 && errno != EINTR) raise_errno("write");
    if (written > 0) done += static_cast<std::size_t>(written);
  }
}

void map_pages(const at::Tensor& weight, int file, std::size_t offset) {
  const std::lock_guard lock(offloading_mutex());
  c10::StorageImpl& storage = *weight.storage().unsafeGetStorageImpl();
  const std::span<std::byte> pages = pages_of(storage);
  std::unique_ptr<Offloaded> made;
  if (!is_offloaded(storage)) made = std::make_unique<Offloaded>(weight);
  if (mmap(pages.data(), pages.size(), kReadWrite, MAP_PRIVATE | MAP_FIXED, file,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    raise_errno("mmap");
  }
  if (!made) {
    context_of(storage).was_cast = false;
    return;
  }
  Offloaded& offloaded = *made;
  registry().add(offloaded);
  void* data = storage.data_ptr().get();
  offloaded.memory =
      storage.set_data_ptr({data, made.release(), &free_offloaded, storage.device()});
}

void restore_pages(c10::StorageImpl& storage) {
  const std::lock_guard lock(offloading_mutex());
  if (!is_offloaded(storage)) return;
  Offloaded& offloaded = context_of(storage);
  const std::span<std::byte> pages = offloaded.pages;
  void* memory = mmap(nullptr, pages.size(), kReadWrite, kAnonymous, -1, 0);
  if (memory == MAP_FAILED) raise_errno("mmap");
  // A page that cannot be read from the disk is an error here and would be a signal below.
  const bool readable = madvise(pages.data(), pages.size(), kPopulateRead) == 0 || errno == EINVAL;
  if (readable) std::memcpy(memory, pages.data(), pages.size());
  if (!readable || mremap(memory, pages.size(), pages.size(), MREMAP_MAYMOVE | MREMAP_FIXED,
                          pages.data()) == MAP_FAILED) {
    const int why = errno;
    munmap(memory, pages.size());
    throw std::system_error(why, std::generic_category(), readable ? "mremap" : "read");
  }
  registry().remove(offloaded);
  c10::DataPtr ours = storage.set_data_ptr(std::move(offloaded.memory));
  static_cast<void>(ours.release_context());
  delete &offloaded;
}

std::size_t restore_all_pages() {
  std::size_t failed = 0;
  for (const auto& storage : registry().alive()) {
    try {
      restore_pages(*storage);
    } catch (const std::system_error&) {
      ++failed;
    }
  }
  return failed;
}

bool has_written_pages(const c10::StorageImpl& storage) {
  const auto is_as_read = [](Page page) {
    return !page.swapped && (!page.present || page.of_file);
  };
  return !every_page(pages_of(storage), is_as_read).value_or(false);
}

void drop_pages(const c10::StorageImpl& storage, std::span<const void* const> kept) {
  const std::span<std::byte> pages = pages_of(storage);
  std::byte* begin = pages.data();
  std::byte* const end = begin + pages.size();
  // Where the system refuses, the pages stay until it needs them.
  const auto drop_until = [&](std::byte* until) {
    if (begin < until) madvise(begin, static_cast<std::size_t>(until - begin), kPageOut);
  };
  for (const void* each : kept) {
    std::byte* page = std::clamp(page_below(each), pages.data(), end);
    drop_until(page);
    begin = std::clamp(page_below(each) + page_size(), begin, end);
  }
  drop_until(end);
  // One that is not there would bring its neighbours when it is read, up to 64 KiB of them.
  madvise(pages.data(), pages.size(), MADV_RANDOM);
  for (const void* each : kept) static_cast<void>(*static_cast<const volatile std::byte*>(each));
  madvise(pages.data(), pages.size(), MADV_NORMAL);
}

bool is_first_cast(const c10::StorageImpl& storage) {
  return !context_of(storage).was_cast.exchange(true);
}

bool lies_in_memory(int file) {
  constexpr std::array<std::uint32_t, 3> kInMemory = {
      0x01021994 /* tmpfs */, 0x858458f6 /* ramfs */, 0x958458f6 /* hugetlbfs */};
  struct statfs about{};
  if (fstatfs(file, &about) != 0) raise_errno("statfs");
  return std::ranges::find(kInMemory, static_cast<std::uint32_t>(about.f_type)) != kInMemory.end();
}

}  // namespace habana_mp
