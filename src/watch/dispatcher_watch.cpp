// What torch calls back with for every op, and the probe that looks at it.
#include <ATen/Parallel.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/name_numbers.h"
#include "base/op_schema.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "listen/hears.h"
#include "policy/decide.h"
#include "scope/casts_off.h"
#include "scope/compound.h"
#include "scope/regions.h"
#include "watch/backward_pass.h"
#include "watch/call_stack.h"
#include "watch/observatory.h"
#include "watch/where.h"

namespace habana_mp::watch {
namespace {

using report::FrontEnd;
using report::Outcome;
using report::Site;
using report::SiteKey;

// What an op by the dispatcher's name is counted as where no rule has decided it.
struct Undecided {
  std::shared_ptr<const Policy> policy;  // null outside of any
  FrontEnd in_force = FrontEnd::None;
  Rule rule{Action::Inputs, DType::Other, false};
  std::string rule_text;
};

// The region of ours that this thread is in, null outside of one.
const autocast::Rules* region_here() {
  const auto* state = autocast::this_thread.state;
  if (state == nullptr || autocast::excluded_here().has(autocast::kRegionKey)) return nullptr;
  for (const autocast::Scope& scope : state->scopes) {
    if (scope.rules) return scope.rules.get();
  }
  return nullptr;
}

std::string_view op_name(const at::RecordFunction& call) { return without_aten(call.name()); }

// By op and by what decides: found once, while a report is open. With the lock of the observer.
using Undecideds =
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::shared_ptr<const Undecided>>;

Undecideds& undecideds() { return process_wide<Undecideds>(); }

std::shared_ptr<const Undecided> undecided(std::uint32_t op, std::uint64_t decider_id,
                                           const autocast::Rules* region) {
  const std::pair key{op, decider_id};
  Undecided found;
  {
    const std::lock_guard guard(all().mutex);
    const auto known = undecideds().find(key);
    if (known != undecideds().end()) return known->second;
  }
  found.policy = region != nullptr ? region->policy : autocast::conversion();
  if (found.policy != nullptr) {
    const Resolution resolution = found.policy->resolve(name_of(op));
    found.in_force = region != nullptr ? FrontEnd::Autocast : FrontEnd::Convert;
    found.rule = resolution.rule;
    if (resolution.rule.listed) found.rule_text = found.policy->rule_text(resolution);
  }
  const std::lock_guard guard(all().mutex);
  const auto made = std::make_shared<const Undecided>(std::move(found));
  return undecideds().try_emplace(key, made).first->second;
}

// A node of a backward pass, as the engine names it.
bool is_backward(const at::RecordFunction& call) {
  return std::string_view(call.name()).starts_with("autograd::engine::");
}

// Ops have a namespace. Functions of autograd and the marks that torch sets for profilers have
// none.
bool is_op(const at::RecordFunction& call) {
  return std::string_view(call.name()).find("::") != std::string_view::npos;
}

// The number that torch.compile has for a graph which runs now ("0/1"), empty for any other call.
std::string compiled_graph(const at::RecordFunction& call) {
  constexpr std::string_view kMark = "Torch-Compiled Region";
  std::string_view name(call.name());
  if (!name.starts_with(kMark)) return {};
  name.remove_prefix(std::min(name.size(), kMark.size() + std::string_view(": ").size()));
  return std::string(name.empty() ? "?" : name);
}

void begin_shown(Thread& thread, const at::RecordFunction& call) {
  const auto inputs = tensors_in(call.inputs());
  const autocast::Rules* region = region_here();
  SiteKey key{.op = number_of(op_name(call)),
              .module = thread.modules.path(),
              .decider_id = region != nullptr ? region->decider_id : autocast::conversion_id(),
              .place = place_of_call()};
  const auto found = undecided(key.op, key.decider_id, region);
  if (found->policy == nullptr) {
    key.outcome = Outcome::Outside;
  } else if (region != nullptr ? casts_off() : convert_off()) {
    key.outcome = Outcome::Off;
  } else if (found->rule.listed) {
    // A region sees all calls; those that it does not decide are in place or have out=.
    const bool left = region != nullptr || casts_nothing(found->rule, dtypes_of(inputs));
    key.outcome = left ? Outcome::LeftAlone : Outcome::Missed;
  }
  if (thread.in_function_of(key.op)) return push(thread, {.kind = Frame::Kind::Dispatched});
  Frame frame{.kind = Frame::Kind::Dispatched, .epoch = thread.epoch};
  frame.call.key = key;
  frame.call.site = site_of(key, [&] {
    const pybind11::gil_scoped_acquire gil;
    return Site{.policy = found->policy,
                .rule = found->rule_text,
                .source = source_here(),
                .in_force = found->in_force};
  });
  show(frame, inputs);
  frame.start = now_ns();
  push(thread, std::move(frame));
}

// Whether a compiler traces the call: it runs ops of its tensors between its modes, too.
bool is_traced(const at::RecordFunction& call) {
  return torch_private::in_fake_mode() ||
         std::ranges::any_of(tensors_in(call.inputs()), [](const at::Tensor& tensor) {
           return tensor.defined() && !has_known_sizes(tensor);
         });
}

std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& call) {
  // The threads of a loop run parts of an op.
  if (at::in_parallel_region()) return nullptr;
  Thread& thread = this_thread();
  if (thread.epoch == 0) return nullptr;
  if (is_backward(call)) {
    push(thread, {.kind = Frame::Kind::Backward, .start = now_ns(), .aside_ns = aside_ns()});
  } else if (const std::string graph = compiled_graph(call); !graph.empty()) {
    // Also inside of another one, which calls the code behind a graph break.
    push(thread, {.kind = Frame::Kind::Dispatched, .hides = true});
    const std::lock_guard guard(all().mutex);
    for_listeners([&](report::Listener& listener) { listener.compiled_ran(graph); });
  } else if (thread.hidden > 0 || is_traced(call)) {
    push(thread, {.kind = Frame::Kind::Dispatched});
  } else if (!is_op(call)) {
    push(thread, {.kind = Frame::Kind::Dispatched, .hides = false, .function = true});
  } else {
    begin_shown(thread, call);
  }
  Probe* looking = probe_here();
  if (looking == nullptr || !is_op(call) || is_traced(call)) return nullptr;
  const LeftOut left_out;
  try {
    auto probed = looking->begins(thread, call);
    if (probed == nullptr) return nullptr;
    probed->by = looking;
    // Of its own frame, whatever row it is counted with: a rule that decides it now finds it there.
    thread.frames.back().probed = probed.get();
    return probed;
  } catch (const std::exception&) {  // a call that cannot be looked at runs all the same
    return nullptr;
  }
}

void op_ends(const at::RecordFunction& call, at::ObserverContext* kept) {
  if (at::in_parallel_region()) return;
  Thread& thread = this_thread();
  auto* probed = static_cast<ProbedCall*>(kept);
  if (probed != nullptr && probed->by == probe()) {
    const LeftOut left_out;
    try {
      probed->by->ends(thread, call, *probed);
    } catch (const std::exception&) {  // its frame is to go in any case
    }
  }
  // A report may have been opened or closed in the middle of it.
  if (thread.frames.empty() || thread.frames.back().kind == Frame::Kind::Decided) return;
  const Frame frame = pop(thread);
  if (frame.kind == Frame::Kind::Backward && thread.hidden == 0) {
    const std::uint64_t lasted = now_ns() - frame.start, aside = aside_ns() - frame.aside_ns;
    const bool raised = std::uncaught_exceptions() > 0;  // the node, or a hook
    const std::lock_guard guard(all().mutex);
    for_listeners([&](report::Listener& listener) {
      listener.backward_ended(lasted > aside ? lasted - aside : 0, raised);
    });
  }
  if (frame.shown) finish(thread, frame, tensors_in(call.outputs()));
}

at::CallbackHandle backward_nodes = 0;  // with the lock of the observer

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& node) {
  enter_node();
  Frame* frame = top();
  if (frame != nullptr && frame->kind == Frame::Kind::Backward && node.seqNr() >= 0)
    frame->call.site = site_of_node(static_cast<std::uint64_t>(node.seqNr()));
  if (Probe* here = probe_here()) try {
      here->node_begins(node);
    } catch (const std::exception&) {  // the backward pass goes on all the same
    }
  return nullptr;
}

void node_ends(const at::RecordFunction&, at::ObserverContext*) { leave_node(); }

// This thread's next op would look at the callbacks anew, under a lock of torch that a fork does
// not wait for. Here it does, for the lock of the caller.
void look_at_callbacks() { static_cast<void>(torch_private::op_listeners()); }

}  // namespace

void set_probe(Probe& probe) {
  Probe* other = nullptr;
  if (!detail::probe.compare_exchange_strong(other, &probe)) {
    throw std::runtime_error(
        other == &probe
            ? std::string(probe.name()) +
                  " is already running. Only one step can be recorded at a time"
            : std::string(probe.name()) + " cannot run inside " + std::string(other->name()));
  }
  listen::set_heard(listen::Hears::Numbers, true);
  keep_nodes(true);
  const std::lock_guard guard(all().mutex);
  backward_nodes = at::addGlobalCallback(at::RecordFunctionCallback(node_begins, node_ends)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::BACKWARD_FUNCTION}));
  look_at_callbacks();
}

void remove_probe(Probe& probe) {
  {
    const std::lock_guard guard(all().mutex);
    at::removeCallback(backward_nodes);
    look_at_callbacks();
  }
  keep_nodes(false);
  Probe* own = &probe;
  if (detail::probe.compare_exchange_strong(own, nullptr))
    listen::set_heard(listen::Hears::Numbers, false);
}

at::CallbackHandle watch_dispatcher() {
  undecideds().clear();
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(op_begins, op_ends)
                                                .needsInputs(true)
                                                .needsOutputs(true)
                                                .scopes({at::RecordScope::FUNCTION}));
  look_at_callbacks();
  return handle;
}

void unwatch_dispatcher(at::CallbackHandle handle) {
  at::removeCallback(handle);
  look_at_callbacks();
}

}  // namespace habana_mp::watch
