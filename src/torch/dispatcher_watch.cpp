#include "torch/dispatcher_watch.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "policy/decide.h"
#include "record/report.h"
#include "torch/autocast_kernel.h"
#include "torch/autocast_state.h"
#include "torch/call_stack.h"
#include "torch/casts_off.h"
#include "torch/names.h"
#include "torch/observatory.h"
#include "torch/process_wide.h"

namespace habana_mp::observer {
namespace {

using record::Fate;
using record::FrontEnd;
using record::Site;
using record::SiteKey;

std::atomic<std::uint32_t> conversion{0};

// What the dispatcher's name of an op stands for where no rule has decided it.
struct Undecided {
  Rule rule;
  std::string policy;
  std::string rule_text;
};

// A region of ours that this thread is in: what it is told apart by, 0 outside of one.
std::uint32_t region_here() {
  const auto* state = autocast::now.state;
  if (state == nullptr || autocast::excluded_here().has(autocast::kRegionKey)) return 0;
  for (const autocast::Scope& scope : state->scopes) {
    if (scope.rules) return scope.rules->context;
  }
  return 0;
}

std::string_view op_name(const at::RecordFunction& call) {
  std::string_view name = call.name();
  constexpr std::string_view kNamespace = "aten::";
  if (name.starts_with(kNamespace)) name.remove_prefix(kNamespace.size());
  return name;
}

// What the policy in force says of an op that no rule has decided.
Undecided asked_of_python(const std::string& op, std::uint32_t region) {
  const pybind11::gil_scoped_acquire gil;
  try {
    const auto [policy, action, low, listed, text] =
        py::module_::import("habana_mp._report.answers")
            .attr("_undecided")(op, region != 0)
            .cast<std::tuple<std::string, int, int, bool, std::string>>();
    return {{static_cast<Action>(action), static_cast<DType>(low), listed}, policy, text};
  } catch (py::error_already_set&) {
    return {{Action::Inputs, DType::Other, false}, "", ""};
  }
}

struct Asked {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Undecided>> said;  // by op and context
};

Asked& asked() { return process_wide<Asked>(); }

std::shared_ptr<const Undecided> undecided(std::uint32_t op, std::uint32_t context,
                                           std::uint32_t region) {
  const std::uint64_t key = (std::uint64_t{op} << 32) | context;
  {
    const std::lock_guard guard(asked().mutex);
    if (const auto found = asked().said.find(key); found != asked().said.end())
      return found->second;
  }
  auto said = std::make_shared<const Undecided>(asked_of_python(name_of(op), region));
  const std::lock_guard guard(asked().mutex);
  return asked().said.try_emplace(key, std::move(said)).first->second;
}

// A node of a backward pass, as the engine tells of it.
bool is_backward(const at::RecordFunction& call) {
  return std::string_view(call.name()).starts_with("autograd::engine::");
}

// Ops have a namespace. Functions of autograd and the marks that torch sets for profilers have
// none.
bool is_op(const at::RecordFunction& call) {
  return std::string_view(call.name()).find("::") != std::string_view::npos;
}

bool is_compiled(const at::RecordFunction& call) {
  return std::string_view(call.name()).starts_with("Torch-Compiled Region");
}

void begin_shown(Thread& thread, const at::RecordFunction& call) {
  const auto given = tensors_in(call.inputs());
  const std::uint32_t region = region_here();
  SiteKey key{.op = number_of(op_name(call)),
              .module = thread.modules.path(),
              .context = region != 0 ? region : conversion_context(),
              .front_end = FrontEnd::None,
              .fate = Fate::Unlisted};
  const auto said = undecided(key.op, key.context, region);
  if (said->policy.empty()) {
    key.fate = Fate::Outside;
  } else if (casts_off()) {
    key.fate = Fate::Off;
  } else if (said->rule.listed) {
    // A region sees all calls; those that it leaves to nobody are in place or have out=.
    const bool left = region != 0 || settled(said->rule, dtypes_of(given));
    key.fate = left ? Fate::LeftAlone : Fate::Missed;
  }
  if (thread.in_function_of(key.op)) return push(thread, {.kind = Frame::Kind::Dispatched});
  Frame frame{.kind = Frame::Kind::Dispatched, .epoch = thread.epoch};
  frame.site = site_of(key, [&] {
    const pybind11::gil_scoped_acquire gil;
    return Site{.policy = said->policy, .rule = said->rule_text, .source = source_here()};
  });
  show(frame, given);
  frame.start = now_ns();
  push(thread, std::move(frame));
}

std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& call) {
  // The threads of a loop run parts of an op.
  if (at::in_parallel_region()) return nullptr;
  Thread& thread = this_thread();
  if (thread.epoch == 0) return nullptr;
  if (is_backward(call)) {
    push(thread, {.kind = Frame::Kind::Backward, .start = now_ns()});
  } else if (thread.hidden > 0 ||
             c10::impl::TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE)) {
    push(thread, {.kind = Frame::Kind::Dispatched});
  } else if (!is_op(call)) {
    push(thread, {.kind = Frame::Kind::Dispatched, .hides = is_compiled(call)});
  } else {
    begin_shown(thread, call);
  }
  return nullptr;
}

void op_ends(const at::RecordFunction& call, at::ObserverContext*) {
  if (at::in_parallel_region()) return;
  Thread& thread = this_thread();
  // A report may have been opened or closed in the middle of it.
  if (thread.frames.empty() || thread.frames.back().kind == Frame::Kind::Decided) return;
  const Frame frame = pop(thread);
  if (frame.kind == Frame::Kind::Backward && thread.hidden == 0) {
    const std::uint64_t lasted = now_ns() - frame.start;
    const std::lock_guard guard(all().mutex);
    for (const auto& report : all().open) report->add_backward_ns(lasted);
  }
  if (frame.shown) finish(thread, frame, tensors_in(call.outputs()));
}

}  // namespace

std::uint32_t conversion_context() { return conversion.load(std::memory_order_relaxed); }

void set_conversion_context(std::uint32_t context) {
  conversion.store(context, std::memory_order_relaxed);
}

at::CallbackHandle watch_dispatcher() {
  {
    const std::lock_guard guard(asked().mutex);
    asked().said.clear();
  }
  return at::addGlobalCallback(at::RecordFunctionCallback(op_begins, op_ends)
                                   .needsInputs(true)
                                   .needsOutputs(true)
                                   .scopes({at::RecordScope::FUNCTION}));
}

}  // namespace habana_mp::observer
