#include "watch/observer.h"

#include <pybind11/pybind11.h>

#include <mutex>
#include <utility>

#include "base/process_wide.h"
#include "watch/call_stack.h"
#include "watch/module_stack.h"
#include "watch/observatory.h"
#include "watch/probe.h"
#include "watch/where.h"

namespace habana_mp::watch {

using report::Hears;
using report::kNone;
using report::Site;
using report::SiteId;

namespace {

at::CallbackHandle callback = 0;  // with the lock

const report::Where& kWhere = *new report::Where(where);  // never destroyed

class ObservesCalls final : public listen::Observer {
 public:
  bool begins(const listen::DecidedCall& decided, c10::function_ref<Tensors()> inputs) override {
    report::Call call{.key = {.op = decided.op,
                              .decider_id = decided.decider_id,
                              .front_end = decided.front_end,
                              .outcome = report::outcome_of(decided.decision.cause)},
                      .decision = decided.decision,
                      .casting = decided.casting,
                      .arguments = decided.arguments,
                      .texts = &decided.texts,
                      .where = &kWhere};
    if (listen::anyone_hears(Hears::Decisions)) {
      const pybind11::gil_scoped_acquire gil;
      report::notify_decided(call);
    }
    if (!watching()) return false;
    Thread& thread = this_thread();
    if (thread.epoch == 0) return false;
    // The dispatcher watch has begun a frame for the same call already.
    Frame* dispatched = nullptr;
    if (decided.dispatched && !thread.frames.empty() &&
        thread.frames.back().kind == Frame::Kind::Dispatched) {
      dispatched = &thread.frames.back();
      dispatched->shown = false;
    }
    if (!decided.dispatched && thread.in_function_of(decided.op)) return false;
    // They are the caller's, and may be gone before the call ends.
    call.texts = nullptr;
    call.where = nullptr;
    call.arguments = {};
    call.key.module = thread.modules.path();
    call.key.place = place_of_call();
    call.site = site_of(call.key, [&] {
      const pybind11::gil_scoped_acquire gil;
      return Site{.policy = decided.texts.policy(),
                  .rule = decided.texts.rule(),
                  .source = source_here(),
                  .in_force = decided.front_end,
                  .instead_of = decided.decision.instead_of};
    });
    Frame frame{.kind = Frame::Kind::Decided, .hides = decided.hides, .epoch = thread.epoch};
    if (dispatched != nullptr) {
      dispatched->call.site = call.site;
      frame.probed = dispatched->probed;
    }
    if (frame.probed != nullptr) frame.probed->site = call.site;
    if (call.decision.cause != Cause::None) frame.runs_in = call.decision.to;
    frame.call = std::move(call);
    show(frame, inputs());
    frame.start = now_ns();
    push(thread, std::move(frame));
    return true;
  }

  bool in_call() override {
    const Frame* frame = top();
    return frame != nullptr && frame->kind == Frame::Kind::Decided;
  }

  void casts(const at::Tensor& source, const at::Tensor& result,
             const report::Cast& cast) override {
    if (!in_call()) return;
    Frame& frame = *top();
    if (Probe* looking = probe_here()) {
      if (result.defined()) looking->casts(source, result);
      auto& kept = frame.probed != nullptr ? frame.probed->casts : frame.cast_tensors;
      kept.emplace_back(source, result);
    }
    notify_cast(frame, source, cast);
  }

  void forget_casts() override {
    Frame* frame = top();
    if (frame == nullptr) return;
    frame->casts.clear();
    frame->cast_tensors.clear();
    if (frame->probed != nullptr) frame->probed->casts.clear();
  }

  void abandon() override {
    Thread& thread = this_thread();
    if (!thread.frames.empty()) pop(thread);
  }

  void ends(Tensors results) override {
    Thread& thread = this_thread();
    if (thread.frames.empty()) return;  // the last listener left meanwhile
    const Frame frame = pop(thread);
    finish(thread, frame, results);
  }

  std::uint64_t origin_here() override {
    const Frame* frame = top();
    if (frame == nullptr || frame->call.site == kNone) return 0;
    return (this_thread().epoch << 32) | frame->call.site;
  }

  at::Tensor cast_back(std::uint64_t origin, const at::Tensor& gradient, DType to,
                       c10::function_ref<at::Tensor()> cast) override {
    if (origin >> 32 != epoch.load(std::memory_order_relaxed)) return cast();
    const std::uint64_t start = now_ns();
    const DType from = dtype_of(gradient);
    at::Tensor result = cast();
    if (from == to) return result;
    const report::Cast made{from, to, false, bytes_of(gradient, to), start, now_ns() - start};
    const auto site = static_cast<SiteId>(origin & 0xFFFFFFFFU);
    if (Probe* looking = probe_here()) looking->casts_back(site, gradient, result);
    const std::lock_guard guard(all().mutex);
    if (origin >> 32 != epoch.load(std::memory_order_relaxed)) return result;
    for_listeners([&](report::Listener& listener) { listener.cast_back(site, made); });
    return result;
  }
};

}  // namespace

listen::Observer& observer() { return process_wide<ObservesCalls>(); }

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
  }
  report::listen(std::move(listener));
}

void unlisten(const report::Listener& listener) {
  if (listener.what() == Hears::Decisions) {
    report::unlisten(listener);
    return;
  }
  Observatory& here = all();
  TensorHistories::Gone expired;
  const std::lock_guard guard(here.mutex);
  if (!report::unlisten(listener) || watching()) return;
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

void enter_module(PyObject* module) {
  Thread& thread = this_thread();
  thread.in_optimizer = false;  // a step that raised has not said that it ended
  if (thread.epoch != 0) thread.modules.enter(module);
}

void set_in_optimizer(bool inside) { this_thread().in_optimizer = inside; }

void leave_module(PyObject* module) { this_thread().modules.leave(module); }

}  // namespace habana_mp::watch
