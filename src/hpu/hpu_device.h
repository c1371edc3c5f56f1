// "hpu" and "habana" as names of another device. While they are mapped, torch itself reads them so,
// wherever it takes a device from Python:
// - a string: "hpu:1" is read as "cuda:1". CPU has no indices. Torch's libraries call one parser in
//   libc10, and the slots through which they do lead here (hpu/import_slot.h).
// - torch.device("hpu:1"): an object of torch's own type, which holds cuda:1 and says hpu:1. Every
//   op takes it as it takes any device, and it equals the device of the tensors that are there.
//   There is one object for each name.
// Nothing of torch runs slower: ops see the mapped device alone. The dispatcher never meets HPU, so
// graphs, pickles and checkpoints have the mapped device in them.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace habana_mp::hpu_device {

// From now on the names stand for this device type. With the GIL held. std::runtime_error where
// this build of torch does not read device names as the ones known do.
void map_to(c10::DeviceType type);

// Torch reads them as it did. Objects made meanwhile keep the device that they hold, and print as
// it: cuda:1.
void unmap();

std::optional<c10::DeviceType> mapped_to();

}  // namespace habana_mp::hpu_device
