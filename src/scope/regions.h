// Which policies hmp.autocast has put in force on this thread, one for each device type.
//
// A region includes a dispatch key of its own on its thread, and our kernels are registered for
// that key: torch's own tables of autocast stay as they are. All that torch.compile must guard on
// is in torch's own autocast state, per thread: a region switches autocast on for its device types,
// so that torch.is_autocast_enabled tells the truth, and for three device types that this package
// never runs on (MAIA, MPS, MTIA), whose dtypes spell a code of the policies in force:
// torch.compile and its caches on disk tell graphs apart by them.
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

// Puts a region in force on this thread, until the leave() of the same owner, which is an address
// and nothing else.
void enter(const Region& region, const void* owner);
// Brings back what was before the last enter() of this owner on this thread; regions entered since
// then that nobody left (Ctrl-C can end what would have) are left too. Throws std::runtime_error
// without one.
void leave(const void* owner);
// Whether this thread is in a region of this owner.
bool is_in(const void* owner);
// All that is in force on this thread, torch's own autocast too.
Region current();

// For traced code: how many regions this thread is in, and leaving all but the first ones of them.
std::size_t depth();
void leave_to(std::size_t depth);

struct Flags {
  std::array<bool, kDeviceCount> enabled;
  std::array<at::ScalarType, kDeviceCount> dtypes;
};

struct Now {
  const State* state = nullptr;  // owned by the frame that entered it
  int nesting = 0;               // of torch's own regions, around ours
  int graph_task = -1;           // the backward pass that the region was entered in
  Flags flags{};                 // as entering left them
  c10::DispatchKeySet hidden{};  // see UncastRest
};
inline constinit thread_local Now now;

// What this thread excludes; read once for a call, because that takes a call too.
inline c10::DispatchKeySet excluded_here() {
  return c10::impl::tls_local_dispatch_key_set().excluded_;
}

inline bool is_on(std::size_t device, c10::DispatchKeySet excluded) {
  return !excluded.has_any(kDeviceSets[device]) || now.hidden.has_any(kDeviceSets[device]);
}

// While the rest of a call runs uncast. torch's own autocast is left out of it by the key set that
// it is redispatched with; but the Python dispatcher (of torch.compile) computes key sets anew. For
// it the key is excluded, and for us it is on as before.
class UncastRest {
 public:
  UncastRest(c10::DispatchKeySet keys, c10::DispatchKeySet left_out) {
    if (!keys.has(c10::DispatchKey::PythonDispatcher)) return;
    before_ = now.hidden;
    guard_.emplace(left_out);
    now.hidden = now.hidden | left_out;
  }
  ~UncastRest() {
    if (guard_) now.hidden = before_;
  }
  UncastRest(const UncastRest&) = delete;
  UncastRest& operator=(const UncastRest&) = delete;

 private:
  c10::DispatchKeySet before_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

// Who rules a call. Nobody: it is to run as if autocast were off (a backward pass runs in the
// dtypes of its forward).
enum class Whose : std::uint8_t { Ours, Torch, Nobody };

// Slow paths of scope_here().
Whose inside_torch_region(std::size_t device, const State& state);
int graph_task();

inline int torch_nesting() {
  const int deeper = at::autocast::increment_nesting();
  at::autocast::decrement_nesting();
  return deeper - 1;
}

struct Here {
  Whose whose;
  const Scope* scope;
};

// Who rules a call on tensors of `device`, and by which scope.
inline Here scope_here(std::size_t device, c10::DispatchKeySet excluded) {
  if (excluded.has(kRegionKey)) return {Whose::Torch, nullptr};
  // On the threads of a backward pass, which torch gives the keys of the thread that began it,
  // there is no state.
  const State* state = now.state;
  if (torch_nesting() > now.nesting) {
    const Whose inner = state ? inside_torch_region(device, *state) : Whose::Torch;
    if (inner != Whose::Ours) return {inner, nullptr};
  }
  if (state == nullptr || graph_task() != now.graph_task) return {Whose::Nobody, nullptr};
  const Scope& scope = state->scopes[device];
  return {scope.rules ? Whose::Ours : Whose::Torch, &scope};
}

}  // namespace habana_mp::autocast
