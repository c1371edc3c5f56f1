// The device types and dispatch keys of hmp.autocast, and what is in force for them.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <cstddef>
#include <memory>

#include "scope/rules.h"

namespace habana_mp::autocast {

// As the dispatcher orders their keys, first the one that it asks first.
inline constexpr std::array kDevices = {c10::DeviceType::PrivateUse1, c10::DeviceType::CUDA,
                                        c10::DeviceType::HPU, c10::DeviceType::XPU,
                                        c10::DeviceType::CPU};
inline constexpr std::array kDeviceKeys = {
    c10::DispatchKey::AutocastPrivateUse1, c10::DispatchKey::AutocastCUDA,
    c10::DispatchKey::AutocastHPU, c10::DispatchKey::AutocastXPU, c10::DispatchKey::AutocastCPU};
inline constexpr std::size_t kDeviceCount = kDevices.size();
// As sets, which the compiler does not work out for a key that it does not know.
inline constexpr std::array kDeviceSets = {
    c10::DispatchKeySet(kDeviceKeys[0]), c10::DispatchKeySet(kDeviceKeys[1]),
    c10::DispatchKeySet(kDeviceKeys[2]), c10::DispatchKeySet(kDeviceKeys[3]),
    c10::DispatchKeySet(kDeviceKeys[4])};

// The key of our kernels. torch has it for tests of the dispatcher and registers nothing for it. It
// comes before those of autocast, and, as a policy is to meet the ops that the user calls and not
// what vmap makes of them, before torch.func's; those between (DeferredInit) are off inside vmap.
inline constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// On: policies are in force on this thread. Off: autocast is torch's, if it is on.
inline constexpr c10::DispatchKey kRegionKey = c10::DispatchKey::AutocastMAIA;

// The device types whose dtypes spell the code.
inline constexpr std::array kSigns = {c10::DeviceType::MAIA, c10::DeviceType::MPS,
                                      c10::DeviceType::MTIA};
inline constexpr std::array kSignKeys = {kRegionKey, c10::DispatchKey::AutocastMPS,
                                         c10::DispatchKey::AutocastMTIA};

inline constexpr c10::DispatchKeySet kAllKeys =
    kDeviceSets[0] | kDeviceSets[1] | kDeviceSets[2] | kDeviceSets[3] | kDeviceSets[4] |
    c10::DispatchKeySet({kKey, kSignKeys[0], kSignKeys[1], kSignKeys[2]});

// What is in force for one device type; without rules nothing of ours.
struct Scope {
  std::shared_ptr<const Rules> rules;
  bool cached = false;  // casts of weights may be kept

  friend bool operator==(const Scope&, const Scope&) = default;
};
using Scopes = std::array<Scope, kDeviceCount>;

struct State {
  Scopes scopes;
  int code;
};

}  // namespace habana_mp::autocast
