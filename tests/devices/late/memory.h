// The memory of the late device. All of a device is mapped twice: where tensors point, nobody may
// read or write, and the host gets a signal for it; kernels reach the same bytes at readable().
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>

namespace late {

// What fills memory that nobody has written: NaN in every floating dtype, -1 in integers.
constexpr int kGarbage = 0xFF;

// A caching allocator: a freed block is filled with garbage, in the order of its stream, and given
// out again on that stream alone. What other streams do with it counts only by record_stream.
c10::DeviceAllocator& memory();

// A block for the device, from the pool of a stream of it.
c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex device);

// The bytes that kernels use for those that a tensor of the device points to.
void* readable(const void* device_address);

// Memory of the host that the device copies to and from at its own time.
c10::Allocator& pinned_memory();
bool is_pinned(const void* address);

// A number for a pool of memory that one capture, or several, allocate from.
std::uint64_t new_pool();

}  // namespace late
