// The device types and dispatch keys of hmp.autocast, and what is in force for them.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/torch_private.h"
#include "policy/op_traits.h"
#include "policy/policy.h"

namespace habana_mp::autocast {

// A policy as a region of hmp.autocast applies it: one rule for every op of the dispatcher.
struct OpRule {
  Rule rule;
  Insides insides;
  bool watched;  // for the error that the device has no low kernel of the op (D42)

  // Whether a call of the op passes by our kernels without a difference.
  constexpr bool does_nothing() const {
    return rule.action == Action::Inputs && insides == Insides::ByRules && !watched;
  }
};

struct Rules {
  std::shared_ptr<const Policy> policy;
  bool of_conversion = false;    // for the insides of compounds that convert has patched (D41)
  bool has_int8 = false;         // it has an op in a list for 8 bits
  std::vector<OpRule> by_op;     // in the order of the catalogue (autocast/catalogue.h)
  std::uint64_t decider_id = 0;  // distinguishes these rules from others in the report
  mutable std::atomic<bool> registered = false;  // the kernels of its ops
};

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

// The key of our kernels.
inline constexpr c10::DispatchKey kKey = torch_private::kKernelKey;

// On: policies are in force on this thread. Off: autocast is torch's, if it is on.
using torch_private::kRegionKey;
// The device types whose dtypes spell the code.
using torch_private::kSignKeys;
using torch_private::kSigns;

inline constexpr c10::DispatchKeySet kAllKeys =
    kDeviceSets[0] | kDeviceSets[1] | kDeviceSets[2] | kDeviceSets[3] | kDeviceSets[4] |
    c10::DispatchKeySet({kKey, kSignKeys[0], kSignKeys[1], kSignKeys[2]});

// What is in force for one device type; without rules nothing of ours.
struct Scope {
  std::shared_ptr<const Rules> rules;
  bool cached = false;  // casts of weights may be kept
  // Switched off by a module that is to run in float32: a module inside may have a policy again.
  bool suspended = false;

  friend bool operator==(const Scope&, const Scope&) = default;
};
using Scopes = std::array<Scope, kDeviceCount>;

struct State {
  Scopes scopes;
  int code;
};

}  // namespace habana_mp::autocast
