// Memory for the results of casts, reused: most of them live as long as one op.
//
// A large one gets fresh pages from the system each time and gives them back when it is freed;
// clearing them takes longer than the cast that fills them. A small one costs, with its alignment,
// as much as the cast.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace habana_mp {

// When the memory of a CPU tensor comes free, and whether that is worth keeping it.
enum class Lifetime : std::uint8_t {
  Call,   // after an op or two: kept
  Graph,  // with a graph, of which the memory is part of what a step takes at most: not kept
  // Weights' copies, which end when their gradients begin, and their gradients, which end before
  // the next copies begin: kept, for they take turns in it.
  Step,
  Once,  // on the way to something else, such as a packed weight: not kept
};

// Of any size.
c10::Allocator* result_memory(Lifetime lifetime);

// For the autograd nodes of casts, which live as long as those: what operator new and delete do.
void* allocate_node(std::size_t bytes);
void free_node(void* node);

// Whether the memory had to be mapped when it was allocated: its pages are in no cache, and not
// even there before they are written. Ask right after the allocation.
bool is_fresh(const c10::DataPtr& data);

// Gives back the large blocks that are kept for reuse.
void release_result_memory();

// Whether large blocks are kept from now on; those that are kept already are given back where not.
void keep_result_memory(bool keep);

}  // namespace habana_mp
