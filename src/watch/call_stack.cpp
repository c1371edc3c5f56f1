#include "watch/call_stack.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "cast/dtypes.h"
#include "watch/backward_pass.h"
#include "watch/observatory.h"
#include "watch/tensor_history.h"
#include "watch/where.h"
#include "weights/weight_cache.h"

namespace habana_mp::watch {

using report::kNone;
using report::Outcome;
using report::Site;
using report::SiteId;

Thread& this_thread() {
  thread_local Thread thread;
  if (const std::uint64_t now = epoch.load(std::memory_order_relaxed); thread.epoch != now) {
    thread.epoch = now;
    thread.hidden = 0;
    thread.in_optimizer = false;
    thread.frames.clear();
    thread.modules.clear();
  }
  return thread;
}

std::uint64_t place_of_call() {
  const Probe* looking = probe_here();
  return looking != nullptr && looking->tells_places() ? place_here() : 0;
}

Frame* top() {
  Thread& thread = this_thread();
  return thread.frames.empty() ? nullptr : &thread.frames.back();
}

void push(Thread& thread, Frame frame) {
  thread.hidden += frame.hides ? 1 : 0;
  thread.frames.push_back(std::move(frame));
}

Frame pop(Thread& thread) {
  Frame frame = std::move(thread.frames.back());
  thread.frames.pop_back();
  thread.hidden -= frame.hides ? 1 : 0;
  return frame;
}

namespace {

// Whether what the frame refers to is still there: another thread may have closed the report, and
// opened another. With the lock.
bool is_current(const Frame& frame) { return frame.epoch == epoch.load(std::memory_order_relaxed); }

// Whether a result in the memory of an argument was written there: x.add_(y).
bool writes(const Frame& frame) {
  const Site& site = all().sites[frame.call.site];
  return site.outcome == Outcome::InPlace || (site.op.ends_with('_') && !site.op.ends_with("__"));
}

// Whether nothing else lies in its memory.
bool is_whole(const at::Tensor& tensor) {
  return tensor.storage().nbytes() == static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
}

// Counts a cast of the tensor: how many there were of it as it is now, to the same dtype.
unsigned count_cast(History& history, const at::TensorBase& tensor, DType to, SiteId site) {
  const std::uint32_t version =
      tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
  const std::uint64_t epoch = weight_cache().epoch();
  const void* data = tensor.const_data_ptr();
  const bool same = history.times > 0 && history.cast_to == to && history.version == version &&
                    history.epoch == epoch && history.data == data &&
                    history.numel == tensor.numel();
  if (!same) {
    history.times = 0;
    history.first = site;
    history.cast_to = to;
    history.version = version;
    history.epoch = epoch;
    history.data = data;
    history.numel = tensor.numel();
  }
  return ++history.times;
}

}  // namespace

void show(Frame& frame, Tensors inputs) {
  frame.call.input_dtypes = dtypes_of(inputs);
  frame.call.first_node = at::sequence_number::peek();
  const std::lock_guard guard(all().mutex);
  if (!is_current(frame)) return;
  frame.shown = true;
  bool first = true;
  for (const at::Tensor& tensor : inputs) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    frame.memory.push_back(tensor.storage().unsafeGetStorageImpl());
    const History* history = all().histories.find(tensor);
    if (may_be_cast(dtype_of(tensor))) {
      const bool weight = history == nullptr || (tensor.is_leaf() && tensor.requires_grad());
      for_listeners([&](report::Listener& listener) {
        listener.given(
            {weight ? kNone : history->maker, frame.call.site, dtype_of(tensor), tensor.dim() == 0},
            static_cast<std::uint64_t>(tensor.numel()), first);
      });
      first = false;
    }
    if (frame.path != kNone || history == nullptr || history->path == kNone) continue;
    // What is cast begins another path.
    if (frame.runs_in != DType::Other && dtype_of(tensor) != frame.runs_in) continue;
    frame.path = all().paths.extend(history->path, frame.call.site);
    frame.path_ns = history->path_ns;
  }
}

void leave_out(std::uint64_t ns) {
  auto& frames = this_thread().frames;
  const auto row =
      std::find_if(frames.rbegin(), frames.rend(), [](const Frame& frame) { return frame.shown; });
  if (row != frames.rend()) row->inside_ns += ns;
}

void finish(const Thread& thread, const Frame& frame, Tensors results) {
  const std::uint64_t lasted = now_ns() - frame.start;
  leave_out(lasted);
  report::Call call = frame.call;
  call.ns = lasted > frame.inside_ns ? lasted - frame.inside_ns : 0;
  call.input_dtypes = frame.call.input_dtypes & kFloatingDTypes;
  call.ran = frame.runs_in == DType::Other ? call.input_dtypes : dtype_bit(frame.runs_in);
  call.casts = {frame.casts.data(), frame.casts.size()};
  call.last_node = at::sequence_number::peek();
  call.in_optimizer = thread.in_optimizer;
  const auto is_input = [&](const at::Tensor& result) {
    const auto* memory = result.storage().unsafeGetStorageImpl();
    return std::find(frame.memory.begin(), frame.memory.end(), memory) != frame.memory.end();
  };
  for (const at::Tensor& result : results) {
    if (!result.defined() || !result.has_storage() || !has_known_sizes(result)) continue;
    const DType dtype = dtype_of(result);
    if (!is_input(result)) call.made[static_cast<std::size_t>(dtype)] += bytes_of(result, dtype);
  }
  TensorHistories::Gone expired;
  const std::lock_guard guard(all().mutex);
  if (!is_current(frame)) return;
  const Site& site = all().sites[call.site];
  note_nodes(call);
  for_listeners([&](report::Listener& listener) { listener.ended(call, site); });
  if (results.empty() && !frame.memory.empty() && writes(frame)) {  // x[0] = y
    if (History* history = all().histories.find(frame.memory.front())) history->times = 0;
  }
  for (const at::Tensor& result : results) {
    if (!result.defined() || !result.has_storage()) continue;
    // A view: the same numbers, made where they were made.
    if (is_input(result) && !writes(frame)) continue;
    History* history = all().histories.get(result);
    if (history == nullptr) continue;
    if (!is_input(result) || is_whole(result)) history->maker = frame.call.site;
    const bool same = frame.path != kNone && dtype_of(result) == all().paths[frame.path].to;
    history->path = same ? frame.path : kNone;
    history->path_ns = frame.path_ns;
    history->times = 0;
  }
  expired = all().histories.take_expired();
}

void notify_cast(Frame& frame, const at::Tensor& source, const report::Cast& cast) {
  frame.casts.push_back(cast);
  frame.call.first_node = at::sequence_number::peek();
  if (cast.cached || !source.has_storage()) return;
  TensorHistories::Gone expired;
  const std::lock_guard guard(all().mutex);
  if (!is_current(frame)) return;
  History* history = all().histories.get(source);
  if (history == nullptr) return;
  if (history->path != kNone) {
    const report::Paths::Step& step = all().paths[history->path];
    if (step.to == cast.from && step.from == cast.to) {
      for_listeners([&](report::Listener& listener) {
        listener.cast_undone(history->path, frame.call.site, history->path_ns + cast.ns);
      });
    }
  }
  const unsigned times = count_cast(*history, source, cast.to, frame.call.site);
  if (times > 1) {
    // Who filled a weight with its first numbers is not what made it.
    const bool weight = source.is_leaf() && source.requires_grad();
    const SiteId maker = weight ? kNone : history->maker;
    for_listeners([&](report::Listener& listener) {
      listener.cast_repeated(maker, history->first, frame.call.site, cast, times);
    });
  }
  // A weight is cast beside what the path is about.
  if (frame.path == kNone || (!frame.begins && !source.is_leaf())) {
    frame.path = all().paths.begin(frame.call.site, cast.from, cast.to);
    frame.path_ns = cast.ns;
    frame.begins = true;
  }
  expired = all().histories.take_expired();
}

}  // namespace habana_mp::watch
