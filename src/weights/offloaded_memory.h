// Memory of weights on the CPU whose pages a file holds, so that the system may drop them.
//
// The pages are replaced where they are: a private mapping of the file takes the addresses of what
// the allocator gave. So nothing that knows the memory notices, neither tensors that share it nor
// the copy in the weight cache. What is written to such a page is in memory again, and the file
// does not see it. Every storage gives the pages back as they were before its allocator frees them,
// as an allocator may hold pages that it has dropped for zeros.
//
// Knows nothing of copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <span>

#include "base/fork_safe_mutex.h"

namespace habana_mp {

// Frees offloaded memory, which is known by it.
void free_offloaded(void* context);

inline bool is_offloaded(const c10::StorageImpl& storage) {
  return storage.data_ptr().get_deleter() == &free_offloaded;
}

// Held while memory goes into a file or back. With it what is offloaded stays so, on any thread.
ForkSafeMutex& offloading_mutex();

// The whole pages in the memory of a storage. What lies on a page with other memory stays.
std::span<std::byte> pages_of(const c10::StorageImpl& storage);

// Writes the pages to the file, at an offset that is a multiple of the size of a page.
// std::system_error where that fails.
void write_pages(const c10::StorageImpl& storage, int file, std::size_t offset);

// Lets the storage have the pages that write_pages() has written there. std::system_error where
// that fails; nothing has changed then.
void map_pages(const at::Tensor& weight, int file, std::size_t offset);

// Gives an offloaded storage memory of its own again, with the numbers that are there now. The same
// error; nothing has changed then.
void restore_pages(c10::StorageImpl& storage);

// restore_pages() for every storage that is alive. Returns how many could not be restored.
std::size_t restore_all_pages();

// Whether somebody may have written to pages since they were mapped: those are in memory.
bool has_written_pages(const c10::StorageImpl& storage);

// Asks the system to drop the pages that are as in the file, but for those that hold `kept`, which
// is in ascending order. These are read alone.
void drop_pages(const c10::StorageImpl& storage, std::span<const void* const> kept);

// Whether this is the first call since map_pages(). A weight that is cast again and again would
// have to be read from the disk each time if its pages were dropped each time.
bool is_first_cast(const c10::StorageImpl& storage);

// Whether what the file holds lies in memory itself.
bool lies_in_memory(int file);

}  // namespace habana_mp
