// Memory for large results, reused. An allocation of 32 MiB and more gets fresh pages from the
// system each time and gives them back when it is freed; clearing them takes longer than the cast
// that fills them.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace habana_mp {

// From here on malloc maps every allocation anew (the upper bound of glibc's M_MMAP_THRESHOLD).
inline constexpr std::size_t kLargeBlock = std::size_t{32} << 20;

// For blocks of kLargeBlock bytes and more.
c10::Allocator* large_blocks();

// Whether the block that `data` points to had to be mapped: its pages are in no cache and not even
// there before they are written. Ask right after the allocation.
bool is_fresh(const c10::DataPtr& data);

// Gives back what is kept for reuse.
void release_large_blocks();

}  // namespace habana_mp
