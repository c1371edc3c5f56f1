#include "torch/autocast_state.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "torch/autocast_kernel.h"
#include "torch/casts_off.h"

namespace habana_mp::autocast {
namespace {

// The digits of a code. Any dtypes would do that Python has an object for.
constexpr std::array kDigits = {at::kByte,
                                at::kChar,
                                at::kShort,
                                at::kInt,
                                at::kLong,
                                at::kHalf,
                                at::kFloat,
                                at::kDouble,
                                at::kComplexHalf,
                                at::kComplexFloat,
                                at::kComplexDouble,
                                at::kBool,
                                at::kQInt8,
                                at::kQUInt8,
                                at::kQInt32,
                                at::kBFloat16,
                                at::kQUInt4x2,
                                at::kQUInt2x4,
                                at::kBits1x8,
                                at::kBits2x4,
                                at::kBits4x2,
                                at::kBits8,
                                at::kBits16,
                                at::kFloat8_e5m2,
                                at::kFloat8_e4m3fn,
                                at::kFloat8_e5m2fnuz,
                                at::kFloat8_e4m3fnuz,
                                at::kUInt16,
                                at::kUInt32,
                                at::kUInt64};
constexpr int kBase = static_cast<int>(kDigits.size());
constexpr int kCodes = kBase * kBase * kBase;  // 0 stands for no policy

// Codes of what has been in force in this process. A code is never given to another content: graphs
// of torch.compile outlive the policies that they were traced under. It comes from the content
// alone but for rare collisions, so that caches on disk, which know graphs by it, serve other
// processes.
class Codes {
 public:
  std::shared_ptr<const State> state_of(const Scopes& scopes) {
    const std::uint64_t content = hash_of(scopes);
    const std::lock_guard guard(mutex_);
    const int code = code_of(content);
    std::weak_ptr<const State>& known = states_[code];
    if (auto state = known.lock(); state && state->scopes == scopes) return state;
    auto state = std::make_shared<const State>(State{scopes, code});
    known = state;
    return state;
  }

  // For graphs, which know it by its code alone.
  void keep(std::shared_ptr<const State> state) {
    const std::lock_guard guard(mutex_);
    kept_[state->code] = std::move(state);
  }

  std::shared_ptr<const State> find(int code) {
    const std::lock_guard guard(mutex_);
    const auto found = states_.find(code);
    return found == states_.end() ? nullptr : found->second.lock();
  }

 private:
  static std::uint64_t hash_of(const Scopes& scopes) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const Scope& scope : scopes) {
      hash = (hash ^ (scope.rules ? scope.rules->policy->hash() : 0)) * 0x100000001b3u;
      hash ^= hash >> 29;
    }
    return hash;
  }

  int code_of(std::uint64_t content) {
    int code = static_cast<int>(content % (kCodes - 1)) + 1;
    for (int tried = 1; tried < kCodes; ++tried) {
      const auto [place, fresh] = contents_.try_emplace(code, content);
      if (fresh || place->second == content) return code;
      code = code % (kCodes - 1) + 1;
    }
    throw std::runtime_error("more than " + std::to_string(kCodes - 1) +
                             " policies have been in force in this process");
  }

  std::mutex mutex_;
  std::unordered_map<int, std::uint64_t> contents_;
  std::unordered_map<int, std::weak_ptr<const State>> states_;
  std::unordered_map<int, std::shared_ptr<const State>> kept_;
};

Codes& codes() {
  static auto* all = new Codes;  // threads may outlive the end of the process's statics
  return *all;
}

// What leave() brings back.
struct Frame {
  std::shared_ptr<const State> entered;  // keeps now.state alive
  Now before;
  Flags flags;
  std::array<std::pair<bool, at::ScalarType>, kSigns.size()> signs;
  bool included;
  bool torch_cache;
  bool casts_off;
};
thread_local std::vector<Frame> frames;

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

void set_sign(std::size_t sign, bool on, at::ScalarType dtype) {
  c10::impl::tls_set_dispatch_key_excluded(kSignKeys[sign], !on);
  at::autocast::set_autocast_dtype(kSigns[sign], dtype);
}

// What this thread has in force, as a value that may be changed.
Scopes scopes_now() {
  Scopes scopes;
  const c10::DispatchKeySet excluded = excluded_here();
  if (excluded.has(kRegionKey)) return scopes;
  const State* state = excluded.has(kEnteredKey) ? decoded() : now.state;
  if (state == nullptr) return scopes;
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    if (is_on(i, excluded) && scope_here(i, excluded).whose != Whose::Torch)
      scopes[i] = state->scopes[i];
  }
  return scopes;
}

// Null where nothing of ours is in force inside.
std::shared_ptr<const State> state_inside(const Region& region) {
  Scopes scopes = scopes_now();
  for (const Setting& setting : region.settings) {
    scopes[setting.device] = setting.enabled ? setting.scope : Scope{};
  }
  return scopes == Scopes{} ? nullptr : codes().state_of(scopes);
}

}  // namespace

void enter(const Region& region) {
  std::shared_ptr<const State> state = state_inside(region);
  Frame frame{.entered = state,
              .before = now,
              .flags = read_flags(),
              .signs = {},
              .included = set_included(state != nullptr),
              .torch_cache = at::autocast::is_autocast_cache_enabled(),
              .casts_off = casts_off()};
  for (std::size_t i = 0; i < kSigns.size(); ++i) {
    frame.signs[i] = {!excluded_here().has(kSignKeys[i]),
                      at::autocast::get_autocast_dtype(kSigns[i])};
  }
  frames.push_back(std::move(frame));
  now = {};

  for (const Setting& setting : region.settings) {
    set_device(setting.device, setting.enabled, setting.dtype);
  }
  const Code code = spelled(state ? state->code : 0);
  for (std::size_t i = 0; i < kSigns.size(); ++i) set_sign(i, state != nullptr, code[i]);
  // torch's cache serves its own kernels only, which do not run in a region of ours.
  at::autocast::set_autocast_cache_enabled(
      region.torch_cache.value_or(state ? false : frames.back().torch_cache));
  if (region.casts_off) set_casts_off(*region.casts_off);
  now = {.state = state.get(),
         .nesting = torch_nesting(),
         .graph_task = graph_task(),
         .flags = read_flags(),
         .hidden = {}};
}

void leave() {
  if (frames.empty()) {
    throw std::runtime_error(
        "a region of autocast was left more often than entered on this thread");
  }
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
  set_casts_off(frame.casts_off);
  now = frame.before;
}

bool set_included(bool included) {
  const bool before = c10::impl::tls_is_dispatch_key_included(kKey);
  if (included != before) c10::impl::tls_set_dispatch_key_included(kKey, included);
  return before;
}

Region current() {
  Region region;
  const Scopes scopes = scopes_now();
  const Flags flags = read_flags();
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    region.settings.push_back({i, flags.enabled[i], flags.dtypes[i], scopes[i]});
  }
  region.torch_cache = at::autocast::is_autocast_cache_enabled();
  region.casts_off = casts_off();
  return region;
}

int code_inside(const Region& region) {
  auto state = state_inside(region);
  if (state == nullptr) return 0;
  const int code = state->code;
  codes().keep(std::move(state));
  return code;
}

Code spelled(int code) {
  Code digits;
  for (at::ScalarType& digit : digits) {
    digit = kDigits[static_cast<std::size_t>(code % kBase)];
    code /= kBase;
  }
  return digits;
}

// A trace that an error ended leaves our key behind: torch.compile brings back torch's state alone.
void forget_left_region() {
  if (now.state == nullptr && decoded() == nullptr) set_included(false);
}

// A graph that torch.compile made runs the calls that it traced.
const State* decoded() {
  thread_local std::pair<int, std::shared_ptr<const State>> last{0, nullptr};
  int code = 0;
  for (std::size_t i = kSigns.size(); i-- > 0;) {
    const auto* digit =
        std::find(kDigits.begin(), kDigits.end(), at::autocast::get_autocast_dtype(kSigns[i]));
    code = code * kBase + static_cast<int>(digit - kDigits.begin());
  }
  if (last.first != code || !last.second) last = {code, codes().find(code)};
  return last.second.get();
}

// A region of torch's that was entered inside ours rules its device type (the inner one rules). It
// leaves no trace but its nesting and what it has set: where that differs from what ours set, it is
// its device type; where nothing differs, it is taken for one of the same type and dtype as ours.
Whose inside_torch_region(std::size_t device, const State& state) {
  constexpr auto kHpu = static_cast<std::size_t>(
      std::find(kDevices.begin(), kDevices.end(), c10::DeviceType::HPU) - kDevices.begin());
  const Flags flags = read_flags();
  const auto changed = [&](std::size_t i) {
    return flags.enabled[i] != now.flags.enabled[i] || flags.dtypes[i] != now.flags.dtypes[i];
  };
  if (changed(device)) return Whose::Torch;
  // A region of ours for HPU serves the tensors' own device where there is none (D28), and so does
  // what switches it off.
  if (changed(kHpu) && !flags.enabled[kHpu] && state.scopes[kHpu] == state.scopes[device])
    return Whose::Nobody;
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    if (changed(i)) return Whose::Ours;
  }
  return Whose::Torch;
}

int graph_task() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace habana_mp::autocast
