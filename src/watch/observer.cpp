#include "watch/observer.h"

#include <pybind11/pybind11.h>

#include <mutex>
#include <utility>
#include <vector>

#include "base/name_numbers.h"
#include "cast/node.h"
#include "watch/call_stack.h"
#include "watch/dispatcher_watch.h"
#include "watch/module_stack.h"
#include "watch/observatory.h"
#include "watch/probe.h"
#include "watch/where.h"

namespace habana_mp::watch {

using report::FrontEnd;
using report::Hears;
using report::kNone;
using report::Site;
using report::SiteId;

namespace {

at::CallbackHandle callback = 0;  // with the lock

// What the node of a cast keeps: the epoch and the site of the call that made it, 0 for none.
std::uint64_t origin_here() {
  const Frame* frame = top();
  if (frame == nullptr || frame->call.site == kNone) return 0;
  return (this_thread().epoch << 32) | frame->call.site;
}

at::Tensor run_backward(std::uint64_t origin, const at::Tensor& gradient, DType to,
                        c10::function_ref<at::Tensor()> cast) {
  if (origin >> 32 != epoch.load(std::memory_order_relaxed)) return cast();
  const std::uint64_t start = now_ns();
  const DType from = dtype_of(gradient);
  at::Tensor result = cast();
  if (from == to) return result;
  const report::Cast made{from, to, false, bytes_of(gradient, to), start, now_ns() - start};
  if (Probe* looking = probe_here()) looking->casts(gradient, result);
  const std::lock_guard guard(all().mutex);
  if (origin >> 32 != epoch.load(std::memory_order_relaxed)) return result;
  const auto site = static_cast<SiteId>(origin & 0xFFFFFFFFU);
  for_listeners([&](report::Listener& listener) { listener.cast_back(site, made); });
  return result;
}

constexpr BackwardWatch kBackwardWatch{origin_here, run_backward};

}  // namespace

void listen(std::shared_ptr<report::Listener> listener) {
  if (listener->what() == Hears::Decisions) return report::listen(std::move(listener));
  Observatory& here = all();
  const std::lock_guard guard(here.mutex);
  if (!watching()) {
    static std::uint64_t epochs = 0;
    here.sites.clear();
    here.paths.clear();
    callback = watch_dispatcher();
    epoch.store(++epochs, std::memory_order_relaxed);
    backward_watch.store(&kBackwardWatch, std::memory_order_relaxed);
  }
  report::listen(std::move(listener));
}

void unlisten(const report::Listener& listener) {
  if (listener.what() == Hears::Decisions) {
    report::unlisten(listener);
    return;
  }
  Observatory& here = all();
  std::vector<History> expired;
  const std::lock_guard guard(here.mutex);
  if (!report::unlisten(listener) || watching()) return;
  backward_watch.store(nullptr, std::memory_order_relaxed);
  epoch.store(0, std::memory_order_relaxed);
  unwatch_dispatcher(callback);
  expired = here.histories.take_all();
  forget_modules();
}

Snapshot snapshot_of(const report::Report& report) {
  const std::lock_guard guard(all().mutex);
  return {report, all().sites, all().paths};
}

std::vector<report::EndedCall> take_calls(report::CallQueue& queue) {
  const std::lock_guard guard(all().mutex);
  return queue.take();
}

void WatchedCall::begin(const report::Call& call, const What& what) {
  if (report::anyone_hears(Hears::Decisions)) {
    const pybind11::gil_scoped_acquire gil;
    report::notify_decided(call);
  }
  if (!watching()) return;
  Thread& thread = this_thread();
  if (thread.epoch == 0) return;
  const FrontEnd front_end = call.key.front_end;
  // The dispatcher watch has begun a frame for the same call already.
  MeasuredCall* measured = nullptr;
  Frame* dispatched = nullptr;
  if (what.dispatched && !thread.frames.empty() &&
      thread.frames.back().kind == Frame::Kind::Dispatched) {
    dispatched = &thread.frames.back();
    dispatched->shown = false;
    measured = dispatched->measured;
  }
  if (!what.dispatched && thread.in_function_of(call.key.op)) return;
  Frame frame{.kind = Frame::Kind::Decided, .hides = what.hides, .epoch = thread.epoch};
  frame.call = call;
  // They are the caller's, and may be gone before the call ends.
  frame.call.texts = nullptr;
  frame.call.arguments = {};
  frame.call.key.module = thread.modules.path();
  frame.call.key.outcome = report::outcome_of(call.decision.cause);
  frame.call.site = site_of(frame.call.key, [&] {
    const pybind11::gil_scoped_acquire gil;
    Decider decider = what.decider();
    return Site{.policy = std::move(decider.policy),
                .rule = std::move(decider.rule),
                .source = source_here(),
                .in_force = front_end};
  });
  if (dispatched != nullptr) dispatched->call.site = frame.call.site;
  if (measured != nullptr) {
    measured->site = frame.call.site;
    frame.measured = measured;
  }
  if (call.decision.cause != Cause::None) frame.runs_in = call.decision.to;
  show(frame, what.inputs());
  frame.start = now_ns();
  push(thread, std::move(frame));
  begun_ = true;
}

void WatchedCall::forget_casts() {
  Frame* frame = begun_ ? top() : nullptr;
  if (frame == nullptr) return;
  frame->casts.clear();
  frame->cast_tensors.clear();
  if (frame->measured != nullptr) frame->measured->casts.clear();
}

void WatchedCall::abandon() {
  if (!std::exchange(begun_, false)) return;
  Thread& thread = this_thread();
  if (!thread.frames.empty()) pop(thread);
}

void WatchedCall::end(Tensors results) {
  if (!std::exchange(begun_, false)) return;
  Thread& thread = this_thread();
  if (thread.frames.empty()) return;  // the last listener left meanwhile
  finish(thread, pop(thread), results);
}

WatchedCall::~WatchedCall() { end({}); }

bool in_watched_call() {
  const Frame* frame = top();
  return frame != nullptr && frame->kind == Frame::Kind::Decided;
}

void notify_cast(const at::Tensor& source, const at::Tensor& result, const report::Cast& cast) {
  if (!in_watched_call()) return;
  Frame& frame = *top();
  if (Probe* looking = probe_here()) {
    if (result.defined()) looking->casts(source, result);
    auto& kept = frame.measured != nullptr ? frame.measured->casts : frame.cast_tensors;
    kept.emplace_back(source, result);
  }
  notify_cast(frame, source, cast);
}

void enter_module(PyObject* module) {
  Thread& thread = this_thread();
  thread.in_optimizer = false;  // a step that raised has not said that it ended
  if (thread.epoch != 0) thread.modules.enter(module);
}

void set_in_optimizer(bool inside) { this_thread().in_optimizer = inside; }

void leave_module(PyObject* module) { this_thread().modules.leave(module); }

}  // namespace habana_mp::watch
