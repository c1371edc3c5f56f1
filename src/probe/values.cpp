#include "probe/values.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/op_schema.h"
#include "base/process_wide.h"
#include "cast/dtypes.h"
#include "cast/tensors.h"
#include "evidence/differences.h"
#include "evidence/rerun.h"
#include "evidence/shadows.h"
#include "policy/op_traits.h"
#include "probe/choices/following.h"
#include "probe/choices/margins.h"
#include "probe/inherited_errors.h"
#include "probe/measured_call.h"
#include "probe/measures.h"
#include "scope/regions.h"
#include "watch/backward_pass.h"
#include "watch/call_stack.h"
#include "watch/observatory.h"
#include "watch/observer.h"
#include "watch/step_threads.h"

namespace habana_mp::probe {
namespace {

using report::SiteId;
using report::Unmeasured;
using report::Values;
using watch::all;
using watch::CastTensors;
using watch::for_listeners;
using watch::Frame;
using watch::Thread;

struct Measuring final : watch::Probe {
  std::string_view name() const override { return "hmp.report(values=True)"; }
  bool tells_places() const override { return true; }
  bool hears_here() const override;
  std::unique_ptr<watch::ProbedCall> begins(const Thread& thread,
                                            const at::RecordFunction& call) override;
  void ends(const Thread& thread, const at::RecordFunction& call, watch::ProbedCall& kept) override;

  report::Measure measure;  // with the lock
  // That measure, each with the step of the thread that it was opened on; with the lock.
  std::map<const report::Report*, std::uint64_t> steps;
};

Measuring& here() { return process_wide<Measuring>(); }

struct OnThread {
  std::uint64_t epoch = 0;
  unsigned measuring = 0;          // calls that are being measured, one inside another
  std::uint64_t looked_at = 0;     // calls that have been measured, or not, with a reason
  std::uint64_t low = 0;           // of those that ran low
  SiteId lowered = report::kNone;  // the last of the calls inside of it that a list has lowered
};

OnThread& on_this_thread() {
  thread_local OnThread thread;
  if (const std::uint64_t now = watch::epoch.load(std::memory_order_relaxed); thread.epoch != now) {
    thread.epoch = now;
    thread.measuring = 0;
  }
  return thread;
}

report::Measure what_to_measure() {
  const std::lock_guard guard(all().mutex);
  return here().measure;
}

// In the low dtype of the policy that the call is under, and outside of any in that of the report.
report::Measure measure_of(const MeasuredCall& context) {
  const std::lock_guard guard(all().mutex);
  report::Measure measure = here().measure;
  const bool known = context.epoch == watch::epoch.load(std::memory_order_relaxed);
  if (const auto* policy = known ? all().sites[context.site].policy.get() : nullptr)
    measure.low = policy->low();
  return measure;
}

bool Measuring::hears_here() const {
  const std::lock_guard guard(all().mutex);
  return std::ranges::any_of(steps, [](const auto& measured) {
    const std::uint64_t counted = measured.first->step();
    return counted == 0 || watch::in_step(counted);
  });
}

// Ops of other threads have a row alone (D50).
bool is_measured_thread() {
  const std::lock_guard guard(all().mutex);
  return std::ranges::any_of(here().steps,
                             [](const auto& measured) { return watch::in_step(measured.second); });
}

void notify(const MeasuredCall& context, const Values& values) {
  const std::lock_guard guard(all().mutex);
  if (context.epoch != watch::epoch.load(std::memory_order_relaxed)) return;
  for_listeners([&](report::Listener& listener) { listener.measured(context.site, values); });
}

// Of the loss whose backward pass runs, in its units.
report::Change change_here(double low, double rounding) {
  const auto [pass, loss, scale] = watch::backward_pass();
  return {.pass = pass, .loss = loss, .low = low / scale, .rounding = rounding / scale};
}

// Whether there was room for it.
bool wait(Off& off) {
  return evidence::wait_for_gradient(
      off.result, std::move(off.difference), std::move(off.inner),
      off.inherited || off.format ? report::kNone : off.site,
      [site = off.site, ran = off.ran, passed = off.passed, format = off.format](
          double change, double rounding, bool read) {
        report::Change found = change_here(change, rounding);
        if (ran) found.ran = found.low;
        found.format = format;
        const std::lock_guard guard(all().mutex);
        for_listeners([&](report::Listener& listener) {
          if (!passed) listener.changed(site, found);
          if (read) listener.read(site, report::kNone, found);
        });
      });
}

// What is inside of it is not looked at: its own, or all that can be known of it.
bool hides(const MeasuredCall& context) {
  return context.why == Unmeasured::None || context.why == Unmeasured::Reserve;
}

// Of an op that is made of others, these read what it is given where they are looked at.
void watch_readers(const MeasuredCall& context, const std::vector<c10::IValue>& results) {
  if (context.op == nullptr || context.backward || context.why == Unmeasured::Thread ||
      (context.op->composite && !hides(context))) {
    return;
  }
  if (is_copy(*context.op) && !results.empty() && results.front().isTensor()) {
    const at::Tensor &source = context.arguments.front().toTensor(),
                     &copy = results.front().toTensor();
    if (copy.element_size() >= source.element_size()) return evidence::hand_on(source, copy);
  }
  evidence::watch_readers(
      context.given_tensors(), tensors_in(results),
      [site = context.site](SiteId maker, double rounding) {
        const report::Change found = change_here(0, rounding);
        const std::lock_guard guard(all().mutex);
        for_listeners([&](report::Listener& listener) { listener.read(maker, site, found); });
      });
}

// A call that is not run again has ended: a row says so, unless it speaks of calls inside of it. Of
// one that was cast for, these must have run low: attention computes in float32 on rounded numbers.
void end_unmeasured(const MeasuredCall& context, const std::vector<c10::IValue>& results) {
  OnThread& thread = on_this_thread();
  const bool low = ran_low(context, results);
  const bool wanted = low || (!context.backward && what_to_measure().what_if);
  const bool inside =
      context.op->composite ? thread.low != context.low : thread.looked_at != context.looked_at;
  if (!wanted || inside) return;
  ++thread.looked_at;
  if (low) ++thread.low;
  Values values;
  values.leave_out(context.why, context.backward);
  notify(context, values);
}

std::unique_ptr<MeasuredCall> begin_measured(const Thread& thread, const at::RecordFunction& call) {
  unsigned& measuring = on_this_thread().measuring;
  if (measuring > 0) {
    ++measuring;
    auto inside = std::make_unique<MeasuredCall>();
    inside->epoch = thread.epoch;
    return inside;
  }
  on_this_thread().lowered = report::kNone;
  const Frame* frame = counted_with(thread);
  if (frame == nullptr || frame->call.site == report::kNone) return nullptr;
  const evidence::Op* op = evidence::op_of(call);
  const bool backward = frame->kind == Frame::Kind::Backward;
  if (op == nullptr) return nullptr;
  const auto inputs = call.inputs();
  const bool measured = is_measured_thread();
  const auto given = [&] {
    MeasuredCall given;
    given.arguments.assign(inputs.begin(), inputs.end());
    if (frame->kind == Frame::Kind::Decided) given.casts = frame->cast_tensors;
    return given.given_tensors();
  };
  const bool reads = measured && !backward && evidence::any_waits(given());
  const bool decided = frame->kind == Frame::Kind::Decided;
  const bool casts = decided && rounds_by_casts(*frame, *op);
  if (measured && !backward && op->moves && !casts &&
      ((reads && op->written.empty()) || has_any_shadow(inputs))) {
    auto moving = std::make_unique<MeasuredCall>();
    moving->op = op;
    moving->keep(inputs);
    moving->site = frame->call.site;
    moving->epoch = thread.epoch;
    ++measuring;
    return moving;
  }
  if (!(op->computing || casts) || !evidence::has_floating(inputs)) return nullptr;
  if (!backward && is_transparent(*frame, *op, inputs)) return nullptr;
  const Unmeasured why =
      measured ? evidence::why_not_again(*op, inputs, !backward) : Unmeasured::Thread;
  // Of others the ops inside are measured. So they are of a recurrent layer that no list has: a
  // list may have these.
  const bool whole = why == Unmeasured::None && (decided || op->why_not == Unmeasured::None);
  // They do not show what it was cast for.
  const bool cast = decided && !frame->cast_tensors.empty();
  if (op->composite && !whole && !cast) return nullptr;
  // Without what-ifs only that is measured which ran low.
  const bool may_cast =
      !backward && !autocast::excluded_here().has_all(c10::autocast_dispatch_keyset);
  const bool runs_as_given = (backward || !what_to_measure().what_if) && !may_cast;
  if (runs_as_given && !reads && !has_low(inputs)) return nullptr;
  auto context = std::make_unique<MeasuredCall>();
  context->op = op;
  context->why = why;
  context->looked_at = on_this_thread().looked_at;
  context->low = on_this_thread().low;
  if (why == Unmeasured::None) {
    context->keep(inputs);
    if (evidence::why_not_again(*op, inputs) != Unmeasured::None) context->draws.emplace(inputs);
  } else {
    context->arguments.assign(inputs.begin(), inputs.end());
  }
  if (decided) context->casts = frame->cast_tensors;
  context->site = frame->call.site;
  context->epoch = thread.epoch;
  context->backward = backward;
  context->in_function = std::ranges::any_of(thread.frames, &Frame::function);
  if (hides(*context)) ++measuring;
  context->start = now_ns();
  return context;
}

void end_measured(MeasuredCall& context, const at::RecordFunction& call) {
  if (unsigned& measuring = on_this_thread().measuring; measuring > 0 && hides(context))
    --measuring;
  if (context.op == nullptr && is_lowered(context)) on_this_thread().lowered = context.site;
  // bilinear, in no list, sums up what a bmm makes, which a list may lower: the error is that of
  // the bmm, which no gradient reaches.
  const bool whole = context.op != nullptr && hides(context) && !context.backward;
  const SiteId lowered = whole ? on_this_thread().lowered : report::kNone;
  if (lowered != report::kNone) context.site = lowered;
  watch_readers(context, call.outputs());
  if (context.why != Unmeasured::None) return end_unmeasured(context, call.outputs());
  if (context.op == nullptr || call.outputs().empty()) return;  // the op has raised
  if (hands_on(context, call.outputs())) return;
  Values values;
  std::vector<Off> waiting;
  if (context.op->moves && context.casts.empty()) {
    add(values, move_shadow(context, call.outputs()));
    if (values.choices != 0) notify(context, values);
    if (context.op->written.empty()) pass_on(context, call.outputs(), waiting);
    for (Off& off : waiting) wait(off);
    return;
  }
  const evidence::SameDraws same_draws(context.draws ? &*context.draws : nullptr);
  const std::uint64_t start = now_ns();
  if (!context.backward) values.ran_ns = start - context.start;
  (context.backward ? values.backward_calls : values.calls) = 1;
  const std::vector<c10::IValue> results = evidence::results_of(*context.op, call.outputs());
  const bool low = ran_low(context, results) || lowered != report::kNone;
  const bool shadowed = !context.backward && is_shadowed(context);
  const report::Measure measure = measure_of(context);
  if (!low && !shadowed && !measure.what_if) return;
  if (low) ++on_this_thread().low;
  {
    const evidence::OutOfSight out_of_sight;
    if (low) {
      if (context.backward) values.backward_ran_ns = start - context.start;
      measure_low_run(context, results, measure, values, waiting);
      // Not of one that computes from float32 too, and would round in the low dtype.
      const bool exact = values.ran.squares == 0 && values.low.squares == 0;
      if (!context.backward && exact && values.ran.reference_squares > 0)
        pass_on(context, results, waiting);
    } else if (shadowed) {
      add(values, follow_shadows(context, results, {}, waiting));
    }
    if (measure.what_if) {
      if (!low) measure_what_if(context, results, measure, values, waiting);
      measure_absorbed(context, results, values);
    }
  }
  find_inner(context, call.outputs(), waiting);
  bool room = true;
  for (Off& off : waiting) room = wait(off) && room;
  if (!room) values.leave_out(Unmeasured::Memory);
  ++on_this_thread().looked_at;
  notify(context, values);
}

std::unique_ptr<watch::ProbedCall> Measuring::begins(const Thread& thread,
                                                     const at::RecordFunction& call) {
  const bool inside = on_this_thread().measuring > 0;
  if (!inside && is_measured_thread()) {
    std::vector<Off> waiting;
    leave_functions(call.inputs(), waiting);
    for (Off& off : waiting) wait(off);
  }
  auto context = begin_measured(thread, call);
  if (inside || !may_be_followed(call) || !what_to_measure().errors || !is_measured_thread())
    return context;
  begin_followed(thread, call, context);
  if (context != nullptr) context->start = now_ns();
  return context;
}

void Measuring::ends(const Thread&, const at::RecordFunction& call, watch::ProbedCall& kept) {
  auto& context = static_cast<MeasuredCall&>(kept);
  if (!context.aside) end_measured(context, call);
  end_followed(context, call.outputs());
}

void start(const report::Report& report, const report::Measure& measure, std::uint64_t step) {
  bool first = false;
  {
    const std::lock_guard guard(all().mutex);
    first = here().steps.empty();
    if (!first) here().steps.emplace(&report, step);
    report::Measure& now = here().measure;
    now = {.errors = measure.errors || (!first && now.errors),
           .what_if = measure.what_if || (!first && now.what_if),
           .low = measure.low,
           .formats = measure.formats | (first ? 0 : now.formats)};
  }
  if (!first) return;
  evidence::forget_kernels();
  watch::set_probe(here());
  const std::lock_guard guard(all().mutex);
  here().steps.emplace(&report, step);
}

void stop(const report::Report& report) {
  {
    const std::lock_guard guard(all().mutex);
    watch::end_step(here().steps.extract(&report).mapped());
    if (!here().steps.empty()) return;
  }
  watch::remove_probe(here());
  evidence::forget_shadows();
  evidence::forget_differences();
  forget_choices();
}

thread_local std::optional<Aside> projecting;

}  // namespace

void begin_projection() {
  projecting.emplace();
  const std::lock_guard guard(all().mutex);
  for_listeners([](report::Listener& listener) { listener.begin_projection(); });
}

void end_projection() {
  const std::lock_guard guard(all().mutex);
  for_listeners([](report::Listener& listener) { listener.end_projection(); });
  projecting.reset();
}

void begin_backward_at(const at::Tensor& root, const at::Tensor& gradient) {
  evidence::begin_at(root, gradient, [](SiteId maker, double rounding) {
    const report::Change found = change_here(0, rounding);
    const std::lock_guard guard(all().mutex);
    for_listeners([&](report::Listener& listener) { listener.read(maker, report::kRoot, found); });
  });
}

std::shared_ptr<report::Report> open_report(const report::Measure& measure, bool own_thread) {
  const bool has_values = measure.errors || measure.what_if;
  const std::uint64_t step = own_thread || has_values ? watch::begin_step() : 0;
  auto report = std::make_shared<report::Report>(now_ns(), has_values, own_thread ? step : 0);
  if (has_values) {
    try {
      start(*report, measure, step);
    } catch (...) {
      watch::end_step(step);
      throw;
    }
  }
  watch::listen(report);
  return report;
}

void close_report(const report::Report& report) {
  watch::unlisten(report);
  if (report.has_values()) {
    stop(report);
  } else {
    watch::end_step(report.step());
  }
}

}  // namespace habana_mp::probe
