// What a cast kernel is, and how it writes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace habana_mp::kernels {

using Kernel = void (*)(const void* source, void* target, std::size_t count);

// Streaming stores go past the caches. They win where the caches would not hold the target until it
// is read, in memory that is mapped already: new pages have just been cleared in the cache.
enum class Stores : std::uint8_t { Cached, Streaming };

}  // namespace habana_mp::kernels
