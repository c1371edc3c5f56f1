// Memory for the results of casts, reused: most of them live as long as one op.
//
// An allocation of 32 MiB and more gets fresh pages from the system each time and gives them back
// when it is freed; clearing them takes longer than the cast that fills them. A small one costs,
// with its alignment, as much as the cast.
#pragma once

#include <c10/core/Allocator.h>

namespace habana_mp {

// For CPU tensors of any size.
c10::Allocator* result_memory();

// Whether the memory had to be mapped when it was allocated: its pages are in no cache, and not
// even there before they are written. Ask right after the allocation.
bool is_fresh(const c10::DataPtr& data);

// Gives back the large blocks that are kept for reuse.
void release_result_memory();

}  // namespace habana_mp
