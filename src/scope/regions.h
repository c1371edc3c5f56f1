// Which policies hmp.autocast has put in force on this thread, one for each device type.
//
// A region includes a dispatch key of its own on its thread, and our kernels are registered for
// that key: torch's own tables of autocast stay as they are. All that torch.compile must guard on
// is in torch's own autocast state, per thread: a region switches autocast on for its device types,
// so that torch.is_autocast_enabled returns True there, and for three device types that this
// package never runs on (MAIA, MPS, MTIA), whose dtypes spell a code of the policies in force:
// torch.compile and its caches on disk distinguish graphs by them.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "scope/state.h"

namespace habana_mp::autocast {

// What a region sets for one device type.
struct Setting {
  std::size_t device;  // index into kDevices
  bool enabled;
  at::ScalarType dtype;
  Scope scope;
};

struct Region {
  std::vector<Setting> settings;
  // Set for the state of another thread, which is passed on whole.
  std::optional<bool> torch_cache, casts_off;
  std::optional<bool> in_place_of_convert;  // convert casts nothing inside
  bool in_compound = false;                 // it is for the insides of one
};

// Puts a region in force on this thread, until the leave() of the same owner, which is an address
// and nothing else.
void enter(const Region& region, const void* owner);
// Brings back what was before the last enter() of this owner on this thread; regions entered since
// then that nobody left (Ctrl-C can end what would have) are left too. Throws std::runtime_error
// without one.
void leave(const void* owner);
// Inside a region for a C++ scope, whatever is entered and left meanwhile.
class InsideRegion {
 public:
  explicit InsideRegion(const Region& region) { enter(region, this); }
  ~InsideRegion();
  InsideRegion(const InsideRegion&) = delete;
  InsideRegion& operator=(const InsideRegion&) = delete;
};

// Has the regions that were entered in a scope left at its end if what it ran fails: compiled code
// that is interrupted leaves none.
class AllLeft {
 public:
  AllLeft();
  ~AllLeft();
  AllLeft(const AllLeft&) = delete;
  AllLeft& operator=(const AllLeft&) = delete;
  void succeed() { fails_ = false; }

 private:
  const std::size_t depth_;
  bool fails_ = true;
};

// All that is in force on this thread, torch's own autocast too.
Region current();
// The policy of the region that this thread is in, for whichever device type; null outside.
std::shared_ptr<const Policy> policy_here();

// For traced code: how many regions this thread is in, and leaving all but the first ones of them.
std::size_t depth();
void leave_to(std::size_t depth);

struct Flags {
  std::array<bool, kDeviceCount> enabled;
  std::array<at::ScalarType, kDeviceCount> dtypes;
};

struct ThreadState {
  const State* state = nullptr;  // owned by the frame that entered it
  int nesting = 0;               // of torch's own regions, around ours
  int graph_task = -1;           // the backward pass that the region was entered in
  Flags flags{};                 // as entering left them
  c10::DispatchKeySet hidden{};  // see UncastRest
  bool in_compound = false;      // see CompoundGuard
};
inline constinit thread_local ThreadState this_thread;

// What this thread excludes; read once for a call, because that takes a call too.
inline c10::DispatchKeySet excluded_here() {
  return c10::impl::tls_local_dispatch_key_set().excluded_;
}

inline bool is_on(std::size_t device, c10::DispatchKeySet excluded) {
  return !excluded.has_any(kDeviceSets[device]) || this_thread.hidden.has_any(kDeviceSets[device]);
}

// While the rest of a call runs uncast. torch's own autocast is left out of it by the key set that
// it is redispatched with; but the Python dispatcher (of torch.compile) computes key sets anew. For
// it the key is excluded, and for us it is on as before.
class UncastRest {
 public:
  UncastRest(c10::DispatchKeySet keys, c10::DispatchKeySet left_out) {
    if (!keys.has(c10::DispatchKey::PythonDispatcher)) return;
    before_ = this_thread.hidden;
    guard_.emplace(left_out);
    this_thread.hidden = this_thread.hidden | left_out;
  }
  ~UncastRest() {
    if (guard_) this_thread.hidden = before_;
  }
  UncastRest(const UncastRest&) = delete;
  UncastRest& operator=(const UncastRest&) = delete;

 private:
  c10::DispatchKeySet before_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

// While a compound runs: of the ops that it is made of only products run lower (D41).
class CompoundGuard {
 public:
  CompoundGuard() : before_(this_thread.in_compound) { this_thread.in_compound = true; }
  ~CompoundGuard() { this_thread.in_compound = before_; }
  CompoundGuard(const CompoundGuard&) = delete;
  CompoundGuard& operator=(const CompoundGuard&) = delete;

 private:
  const bool before_;
};

// Who rules a call. Nobody: it is to run as if autocast were off (a backward pass runs in the
// dtypes of its forward).
enum class Ruler : std::uint8_t { Ours, Torch, Nobody };

// Slow paths of ruling_here().
Ruler inside_torch_region(std::size_t device, const State& state);
int graph_task();

// What "fp32" has switched off for a device type; null where it has not.
const Scope* suspended_here(std::size_t device);

inline int torch_nesting() {
  const int deeper = at::autocast::increment_nesting();
  at::autocast::decrement_nesting();
  return deeper - 1;
}

struct Ruling {
  Ruler ruler;
  const Scope* scope;
};

// Who rules a call on tensors of `device`, and by which scope.
inline Ruling ruling_here(std::size_t device, c10::DispatchKeySet excluded) {
  if (excluded.has(kRegionKey)) return {Ruler::Torch, nullptr};
  // On the threads of a backward pass, which torch gives the keys of the thread that began it,
  // there is no state.
  const State* state = this_thread.state;
  if (torch_nesting() > this_thread.nesting) {
    const Ruler inner = state ? inside_torch_region(device, *state) : Ruler::Torch;
    if (inner != Ruler::Ours) return {inner, nullptr};
  }
  if (state == nullptr || graph_task() != this_thread.graph_task) return {Ruler::Nobody, nullptr};
  const Scope& scope = state->scopes[device];
  return {scope.rules ? Ruler::Ours : Ruler::Torch, &scope};
}

}  // namespace habana_mp::autocast
