#include "watch/observer.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "watch/call_stack.h"
#include "watch/dispatcher_watch.h"
#include "report/name_numbers.h"
#include "watch/observatory.h"

namespace habana_mp::watch {

using report::Fate;
using report::FrontEnd;
using report::kNone;
using report::Site;
using report::SiteId;
using report::SiteKey;

namespace {

at::CallbackHandle callback = 0;  // with the lock

}  // namespace

std::shared_ptr<report::Report> open_report() {
  auto report = std::make_shared<report::Report>(now_ns());
  Observatory& here = all();
  const std::lock_guard guard(here.mutex);
  if (here.open.empty()) {
    static std::uint64_t opened = 0;
    here.sites.clear();
    here.paths.clear();
    callback = watch_dispatcher();
    epoch.store(++opened, std::memory_order_relaxed);
    report::set_listens(report::Listener::Report, true);
  }
  here.open.push_back(report);
  return report;
}

void close_report(const std::shared_ptr<report::Report>& report) {
  Observatory& here = all();
  std::vector<History> expired;
  const std::lock_guard guard(here.mutex);
  if (std::erase(here.open, report) == 0 || !here.open.empty()) return;
  report::set_listens(report::Listener::Report, false);
  epoch.store(0, std::memory_order_relaxed);
  at::removeCallback(callback);
  expired = here.histories.take_all();
}

Told told_by(const report::Report& report) {
  const std::lock_guard guard(all().mutex);
  return {report, all().sites, all().paths};
}

std::uint32_t context_of(const Policy& policy, FrontEnd front_end) {
  return number_of("policy " + std::to_string(static_cast<int>(front_end)) + " " + policy.name() +
                   " " + std::to_string(policy.hash()));
}

std::uint32_t context_of(std::string_view rule) {
  return number_of("rule " + std::to_string(conversion_context()) + " " + std::string(rule));
}

void renew_conversion(const Policy* policy) {
  set_conversion_context(policy == nullptr ? 0 : context_of(*policy, FrontEnd::Convert));
}

void Watch::begin(const What& what, Tensors given, Describe describe) {
  Thread& thread = this_thread();
  if (thread.epoch == 0) return;
  // The dispatcher has told of the same call already.
  if (what.front_end == FrontEnd::Autocast && !thread.frames.empty() &&
      thread.frames.back().kind == Frame::Kind::Dispatched) {
    thread.frames.back().shown = false;
  }
  if (what.front_end == FrontEnd::Convert && thread.in_function_of(what.op)) return;
  Frame frame{
      .kind = Frame::Kind::Decided, .hides = what.hides, .epoch = thread.epoch, .op = what.op};
  const SiteKey key{.op = what.op,
                    .module = thread.modules.path(),
                    .context = what.context,
                    .front_end = what.front_end,
                    .fate = static_cast<Fate>(what.decision.cause)};
  frame.site = site_of(key, [&] {
    const pybind11::gil_scoped_acquire gil;
    Site site = describe();
    site.source = source_here();
    return site;
  });
  if (what.decision.cause != Cause::None) frame.runs_in = what.decision.to;
  show(frame, given);
  frame.start = now_ns();
  push(thread, std::move(frame));
  begun_ = true;
}

void Watch::forget_casts() {
  if (Frame* frame = begun_ ? top() : nullptr) frame->casts.clear();
}

void Watch::end(Tensors results) {
  if (!std::exchange(begun_, false)) return;
  Thread& thread = this_thread();
  if (thread.frames.empty()) return;  // the report was closed meanwhile
  finish(thread, pop(thread), results);
}

Watch::~Watch() { end({}); }

namespace {

// Tells the call that this thread is in of the cast that `cast` makes, if it is one that is shown.
template <typename Make>
auto watched(const at::Tensor& source, DType to, How how, const Make& make) {
  Frame* frame = reporting() ? top() : nullptr;
  if (frame == nullptr || frame->kind != Frame::Kind::Decided) return make(how);
  bool served = false;
  how.served = &served;
  const DType from = dtype_of(source);
  const std::uint64_t start = now_ns();
  auto result = make(how);
  const std::uint64_t lasted = now_ns() - start;
  frame = top();
  if (frame != nullptr && frame->kind == Frame::Kind::Decided) {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(source.numel()) * (to == DType::Float32 ? 4 : 2);
    tell_cast(*frame, source, {from, to, served, bytes, start, lasted});
  }
  return result;
}

}  // namespace

at::Tensor watched_cast(const at::Tensor& source, DType to, How how) {
  return watched(source, to, how, [&](How told) { return cast_to(source, to, told); });
}

PyObject* watched_cast(PyObject* source, DType to, How how) {
  return watched(THPVariable_Unpack(source), to, how,
                 [&](How told) { return cast_tensor(source, to, told); });
}

std::uint64_t origin_here() {
  if (!reporting()) return 0;
  const Frame* frame = top();
  if (frame == nullptr || frame->site == kNone) return 0;
  return (this_thread().epoch << 32) | frame->site;
}

void tell_backward(std::uint64_t origin, const at::Tensor& gradient, DType to,
                   c10::function_ref<void()> cast) {
  if (origin == 0 || origin >> 32 != epoch.load(std::memory_order_relaxed)) return cast();
  const std::uint64_t start = now_ns();
  const DType from = dtype_of(gradient);
  cast();
  if (from == to) return;
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(gradient.numel()) * (to == DType::Float32 ? 4 : 2);
  const report::Cast made{from, to, false, bytes, start, now_ns() - start};
  const std::lock_guard guard(all().mutex);
  if (origin >> 32 != epoch.load(std::memory_order_relaxed)) return;
  for (const auto& report : all().open) {
    report->add_backward(static_cast<SiteId>(origin & 0xFFFFFFFFU), made);
  }
}

void enter_module(PyObject* module) {
  Thread& thread = this_thread();
  if (thread.epoch != 0) thread.modules.enter(module);
}

void leave_module(PyObject* module) { this_thread().modules.leave(module); }

bool profiled() {
  const auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  return callbacks && callbacks->callbacks_.size() > (reporting() ? 1U : 0U);
}

}  // namespace habana_mp::watch
