// Which policies hmp.autocast has put in force on this thread, one for each device type.
//
// All that torch.compile must guard on is in torch's own autocast state, per thread: a region
// switches autocast on for its device types, so that the dispatcher comes to our kernels and
// torch.is_autocast_enabled tells the truth, and for three device types that this package never
// runs on (MAIA, MPS, MTIA), whose dtypes spell a code of the policies in force: torch.compile and
// its caches on disk tell graphs apart by them. habana_mp/_autocast.py writes the same where
// torch.compile traces a region; then MPS stays off, and the code is read.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace habana_mp::autocast {

inline constexpr std::array kDevices = {c10::DeviceType::CPU, c10::DeviceType::CUDA,
                                        c10::DeviceType::XPU, c10::DeviceType::HPU,
                                        c10::DeviceType::PrivateUse1};
inline constexpr std::array kDeviceKeys = {
    c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA, c10::DispatchKey::AutocastXPU,
    c10::DispatchKey::AutocastHPU, c10::DispatchKey::AutocastPrivateUse1};
inline constexpr std::size_t kDeviceCount = kDevices.size();

// On: policies are in force on this thread. Off: autocast is torch's, if it is on.
inline constexpr c10::DispatchKey kRegionKey = c10::DispatchKey::AutocastMAIA;
// On: they were put in force by enter(), and `now` holds them. Off: read the code.
inline constexpr c10::DispatchKey kEnteredKey = c10::DispatchKey::AutocastMPS;

// The device types whose dtypes spell the code.
inline constexpr std::array kSigns = {c10::DeviceType::MAIA, c10::DeviceType::MPS,
                                      c10::DeviceType::MTIA};
inline constexpr std::array kSignKeys = {kRegionKey, kEnteredKey, c10::DispatchKey::AutocastMTIA};
using Code = std::array<at::ScalarType, kSigns.size()>;

inline constexpr c10::DispatchKeySet kAllKeys(
    {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA, c10::DispatchKey::AutocastXPU,
     c10::DispatchKey::AutocastHPU, c10::DispatchKey::AutocastPrivateUse1, kSignKeys[0],
     kSignKeys[1], kSignKeys[2]});

struct Rules;  // autocast_kernel.h

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

// What a region sets for one device type.
struct Setting {
  std::size_t device;  // index into kDevices
  bool enabled;
  at::ScalarType dtype;
  Scope scope;
};

struct Region {
  std::vector<Setting> settings;
  // Set for the state of another thread, which is handed over whole.
  std::optional<bool> torch_cache, casts_off;
};

// Puts a region in force on this thread, until the leave() that belongs to it.
void enter(const Region& region);
// Brings back what was before the last enter() of this thread. Throws std::runtime_error without
// one.
void leave();
// All that is in force on this thread, torch's own autocast too.
Region current();

// The code of what would be in force inside `region`, here and now; 0 for nothing of ours. It will
// be known from now on.
int code_inside(const Region& region);
Code spelled(int code);

struct Flags {
  std::array<bool, kDeviceCount> enabled;
  std::array<at::ScalarType, kDeviceCount> dtypes;
};

struct Now {
  const State* state = nullptr;  // owned by the frame that entered it
  int nesting = 0;               // of torch's own regions, around ours
  int graph_task = -1;           // the backward pass that the region was entered in
  Flags flags{};                 // as entering left them
};
inline constinit thread_local Now now;

// Slow paths of scope_here().
const State* decoded();
bool torch_region_inside(std::size_t device);
int graph_task();

inline int torch_nesting() {
  const int deeper = at::autocast::increment_nesting();
  at::autocast::decrement_nesting();
  return deeper - 1;
}

enum class Whose : std::uint8_t { Ours, Torch, Nobody };

// Who rules a call that reached a kernel of `device`, and by which scope. Nobody: the call is to
// run as if autocast were off (a backward pass runs in the dtypes of its forward).
struct Here {
  Whose whose;
  const Scope* scope;
};

inline Here scope_here(std::size_t device) {
  const c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  if (excluded.has(kRegionKey)) return {Whose::Torch, nullptr};
  const State* state;
  if (excluded.has(kEnteredKey)) {
    state = decoded();
  } else {
    state = now.state;
    if (state == nullptr || graph_task() != now.graph_task) return {Whose::Nobody, nullptr};
    if (torch_nesting() > now.nesting && torch_region_inside(device))
      return {Whose::Torch, nullptr};
  }
  if (state == nullptr) return {Whose::Nobody, nullptr};
  const Scope& scope = state->scopes[device];
  return {scope.rules ? Whose::Ours : Whose::Torch, &scope};
}

}  // namespace habana_mp::autocast
