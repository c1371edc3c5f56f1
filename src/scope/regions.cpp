#include "scope/regions.h"

#include <algorithm>
#include <deque>
#include <stdexcept>

#include "scope/casts_off.h"
#include "scope/codes.h"

namespace habana_mp::autocast {
namespace {

// What leave() brings back.
struct Frame {
  const void* owner;
  std::shared_ptr<const State> entered;  // keeps this_thread.state alive
  ThreadState before;
  Flags flags;
  std::array<std::pair<bool, at::ScalarType>, kSigns.size()> signs;
  bool included;
  bool torch_cache;
  std::optional<bool> casts_off, in_place_of_convert;  // where the region has set it
};
thread_local std::vector<Frame> frames;

// Owners whose regions were left with one around them: a generator that was in it may go on later.
constexpr std::size_t kMostLeftEarly = 64;
thread_local std::deque<const void*> left_early;

Flags read_flags() {
  Flags flags;
  const c10::DispatchKeySet excluded = excluded_here();
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    flags.enabled[i] = is_on(i, excluded);
    flags.dtypes[i] = at::autocast::get_autocast_dtype(kDevices[i]);
  }
  return flags;
}

void set_device(std::size_t device, bool enabled, at::ScalarType dtype) {
  c10::impl::tls_set_dispatch_key_excluded(kDeviceKeys[device], !enabled);
  at::autocast::set_autocast_dtype(kDevices[device], dtype);
}

void set_included(bool included) { c10::impl::tls_set_dispatch_key_included(kKey, included); }

void set_sign(std::size_t sign, bool on, at::ScalarType dtype) {
  c10::impl::tls_set_dispatch_key_excluded(kSignKeys[sign], !on);
  at::autocast::set_autocast_dtype(kSigns[sign], dtype);
}

// What of ours rules on this thread, as a value that may be changed.
Scopes scopes_now() {
  Scopes scopes;
  const c10::DispatchKeySet excluded = excluded_here();
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    if (!is_on(i, excluded)) {
      if (const Scope* scope = suspended_here(i)) scopes[i] = *scope;
      continue;
    }
    const Ruling here = ruling_here(i, excluded);
    if (here.ruler == Ruler::Ours) scopes[i] = *here.scope;
  }
  return scopes;
}

// The device types that autocast is on for though nobody rules them: in a backward pass.
std::array<bool, kDeviceCount> nobodys() {
  std::array<bool, kDeviceCount> found{};
  const c10::DispatchKeySet excluded = excluded_here();
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    found[i] = is_on(i, excluded) && ruling_here(i, excluded).ruler == Ruler::Nobody;
  }
  return found;
}

// Leaves all but the first regions; their owners may still say so.
void drop_to(std::size_t depth) {
  for (std::size_t i = depth; i < frames.size(); ++i) {
    if (left_early.size() == kMostLeftEarly) left_early.pop_front();
    left_early.push_back(frames[i].owner);
  }
  leave_to(depth);
}

// Whether the owner has had its region left for it, which it then may know.
bool was_left_early(const void* owner) {
  const auto early = std::find(left_early.begin(), left_early.end(), owner);
  if (early == left_early.end()) return false;
  left_early.erase(early);
  return true;
}

// Null where nothing of ours is in force inside.
std::shared_ptr<const State> state_inside(const Region& region) {
  Scopes scopes = scopes_now();
  for (const Setting& setting : region.settings) {
    const bool holds = setting.enabled || setting.scope.suspended;
    scopes[setting.device] = holds ? setting.scope : Scope{};
  }
  return scopes == Scopes{} ? nullptr : state_of(scopes);
}

}  // namespace

void enter(const Region& region, const void* owner) {
  std::shared_ptr<const State> state = state_inside(region);
  Frame frame{.owner = owner,
              .entered = state,
              .before = this_thread,
              .flags = read_flags(),
              .signs = {},
              .included = c10::impl::tls_is_dispatch_key_included(kKey),
              .torch_cache = at::autocast::is_autocast_cache_enabled(),
              .casts_off = region.casts_off ? std::optional(casts_off()) : std::nullopt,
              .in_place_of_convert =
                  region.in_place_of_convert ? std::optional(in_place_of_convert()) : std::nullopt};
  for (std::size_t i = 0; i < kSigns.size(); ++i) {
    frame.signs[i] = {!excluded_here().has(kSignKeys[i]),
                      at::autocast::get_autocast_dtype(kSigns[i])};
  }
  const std::array<bool, kDeviceCount> off = nobodys();
  frames.push_back(std::move(frame));
  this_thread = {};

  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    if (off[i]) set_device(i, false, at::autocast::get_autocast_dtype(kDevices[i]));
  }
  for (const Setting& setting : region.settings) {
    set_device(setting.device, setting.enabled, setting.dtype);
  }
  const Code code = digits_of(state ? state->code : 0);
  for (std::size_t i = 0; i < kSigns.size(); ++i) set_sign(i, state != nullptr, code[i]);
  set_included(state != nullptr);
  // Only torch's own kernels use torch's cache, and they do not run in a region of ours.
  at::autocast::set_autocast_cache_enabled(
      region.torch_cache.value_or(state ? false : frames.back().torch_cache));
  if (region.casts_off) set_casts_off(*region.casts_off);
  if (region.in_place_of_convert) set_in_place_of_convert(*region.in_place_of_convert);
  this_thread = {.state = state.get(),
                 .nesting = torch_nesting(),
                 .graph_task = graph_task(),
                 .flags = read_flags(),
                 .hidden = {},
                 .in_compound = region.in_compound};
}

void leave(const void* owner) {
  for (std::size_t i = frames.size(); i-- > 0;) {
    if (frames[i].owner != owner) continue;
    drop_to(i + 1);
    return leave_to(i);
  }
  if (!was_left_early(owner)) {
    throw std::runtime_error(
        "a region of autocast was left more often than it was entered on this thread");
  }
}

InsideRegion::~InsideRegion() {
  const bool is_in = std::any_of(frames.begin(), frames.end(),
                                 [&](const Frame& frame) { return frame.owner == this; });
  if (is_in) {
    leave(this);
  } else {
    was_left_early(this);
  }
}

AllLeft::AllLeft() : depth_(frames.size()) {}

AllLeft::~AllLeft() {
  if (fails_ && frames.size() > depth_) drop_to(depth_);
}

const Scope* suspended_here(std::size_t device) {
  const State* state = this_thread.state;
  const bool holds = state != nullptr && state->scopes[device].suspended &&
                     torch_nesting() <= this_thread.nesting &&
                     graph_task() == this_thread.graph_task && !is_on(device, excluded_here());
  return holds ? &state->scopes[device] : nullptr;
}

std::size_t depth() { return frames.size(); }

void leave_to(std::size_t depth) {
  while (frames.size() > depth) {
    const Frame frame = std::move(frames.back());
    frames.pop_back();
    for (std::size_t i = 0; i < kDeviceCount; ++i) {
      const bool on = frame.flags.enabled[i] && !frame.before.hidden.has(kDeviceKeys[i]);
      set_device(i, on, frame.flags.dtypes[i]);
    }
    for (std::size_t i = 0; i < kSigns.size(); ++i) {
      set_sign(i, frame.signs[i].first, frame.signs[i].second);
    }
    set_included(frame.included);
    at::autocast::set_autocast_cache_enabled(frame.torch_cache);
    if (frame.casts_off) set_casts_off(*frame.casts_off);
    if (frame.in_place_of_convert) set_in_place_of_convert(*frame.in_place_of_convert);
    this_thread = frame.before;
  }
}

Region current() {
  Region region;
  const Scopes scopes = scopes_now();
  const Flags flags = read_flags();
  const std::array<bool, kDeviceCount> off = nobodys();
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    region.settings.push_back({i, flags.enabled[i] && !off[i], flags.dtypes[i], scopes[i]});
  }
  region.torch_cache = at::autocast::is_autocast_cache_enabled();
  region.casts_off = casts_off();
  region.in_place_of_convert = in_place_of_convert();
  return region;
}

std::shared_ptr<const Policy> policy_here() {
  const State* state = this_thread.state;
  if (state == nullptr) return nullptr;
  for (const Scope& scope : state->scopes) {
    if (scope.rules) return scope.rules->policy;
  }
  return nullptr;
}

// A region of torch's that was entered inside ours rules its device type (the inner one rules). It
// leaves no trace but its nesting and what it has set: where that differs from what ours set, it is
// its device type; where nothing differs, it is taken for one of the same type and dtype as ours.
Ruler inside_torch_region(std::size_t device, const State& state) {
  constexpr auto kHpu = static_cast<std::size_t>(
      std::find(kDevices.begin(), kDevices.end(), c10::DeviceType::HPU) - kDevices.begin());
  const Flags flags = read_flags();
  const auto changed = [&](std::size_t i) {
    return flags.enabled[i] != this_thread.flags.enabled[i] ||
           flags.dtypes[i] != this_thread.flags.dtypes[i];
  };
  if (changed(device)) return Ruler::Torch;
  // A region of ours for HPU acts on the tensors' own device where there is none (D28), and so does
  // what switches it off.
  if (changed(kHpu) && !flags.enabled[kHpu] && state.scopes[kHpu] == state.scopes[device])
    return Ruler::Nobody;
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    if (changed(i)) return Ruler::Ours;
  }
  return Ruler::Torch;
}

int graph_task() { return torch_private::graph_task(); }

}  // namespace habana_mp::autocast
