#include "watch/values.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "cast/numbers.h"
#include "cast/tensors.h"
#include "evidence/numbers.h"
#include "evidence/rerun.h"
#include "policy/op_traits.h"
#include "scope/regions.h"
#include "watch/made_nodes.h"
#include "watch/observatory.h"

namespace habana_mp::watch {
namespace {

using report::Outcome;
using report::SiteId;
using report::Values;

// Differences wait for the backward pass, in bfloat16: as much memory as the activations of the
// model take in it. Beyond this the shares of further calls are not measured.
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;
constexpr std::int64_t kMostShadowNumbers = std::int64_t{1} << 26;
constexpr std::string_view kNamespace = "aten::";

struct Measuring {
  report::Measure measure;
  at::CallbackHandle callback = 0;
};

Measuring& here() { return process_wide<Measuring>(); }

// The frame that the numbers of a call are counted with, and whether it is one of a backward pass.
Frame* counted_with(Thread& thread) {
  for (auto frame = thread.frames.rbegin(); frame != thread.frames.rend(); ++frame) {
    if (frame->shown || frame->kind == Frame::Kind::Backward) return &*frame;
  }
  return nullptr;
}

// Whether ops inside have rules of their own, and so rows: they are measured instead.
bool is_transparent(const Frame& frame, const evidence::Op& op) {
  if (!op.composite) return false;
  const Insides insides = insides_of(op.handle.schema().name().substr(kNamespace.size()));
  const Outcome outcome = frame.call.key.outcome;
  if (frame.kind == Frame::Kind::Decided) {
    return insides == Insides::Compound && outcome != Outcome::Lower && outcome != Outcome::Fp32 &&
           outcome != Outcome::Promote;
  }
  return insides != Insides::Own && outcome == Outcome::Unlisted &&
         autocast::this_thread.state != nullptr;
}

at::Tensor in_float32(const at::Tensor& tensor) {
  return eligible(dtype_of(tensor)) ? tensor.detach().to(at::kFloat) : tensor;
}

// What waits for a gradient: freed when its graph is, or when nobody measures any more.
struct Difference {
  at::Tensor numbers;
  SiteId site = report::kNone;
  bool ran = false;
};

struct Differences {
  ForkSafeMutex mutex;
  std::unordered_map<std::uint64_t, Difference> by_number;
  std::uint64_t made = 0;
  std::int64_t bytes = 0;
};

Differences& differences() { return process_wide<Differences>(); }

// A share of a difference, which the hook of a result has.
class Waiting {
 public:
  explicit Waiting(std::uint64_t number) : number_(number) {}
  ~Waiting() {
    Difference gone;
    const std::lock_guard guard(differences().mutex);
    const auto found = differences().by_number.find(number_);
    if (found == differences().by_number.end()) return;
    differences().bytes -= found->second.numbers.numel() * 2;
    gone = std::move(found->second);
    differences().by_number.erase(found);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // In a backward pass: nothing that goes wrong here may end it.
  void gradient(const at::Tensor& gradient) const {
    // With create_graph it is the gradient of something that the loss is made of.
    if (!gradient.defined() || !measures() || c10::GradMode::is_enabled()) return;
    try {
      multiply(gradient);
    } catch (const std::exception&) {
    }
  }

 private:
  void multiply(const at::Tensor& gradient) const {
    Difference difference;
    {
      const std::lock_guard guard(differences().mutex);
      const auto found = differences().by_number.find(number_);
      if (found == differences().by_number.end()) return;
      difference = found->second;
    }
    const bool fits = gradient.layout() == at::kStrided && is_ordinary(gradient) &&
                      gradient.sizes() == difference.numbers.sizes();
    if (!fits) return;
    double change = 0;
    {
      const evidence::OutOfSight out_of_sight;
      change = evidence::product(gradient, difference.numbers);
    }
    Values values;
    values.changes = 1;
    values.change_low = change;
    if (difference.ran) values.change_ran = change;
    const std::lock_guard guard(all().mutex);
    for_listeners([&](report::Listener& listener) { listener.measured(difference.site, values); });
  }

  std::uint64_t number_;
};

// One result of a call, beside that of another run of it.
struct Compared {
  at::Tensor result, other;
};

std::vector<Compared> compared(const std::vector<c10::IValue>& results,
                               const torch::jit::Stack& others) {
  std::vector<Compared> pairs;
  const auto a = tensors_in(results);
  const auto b = tensors_in(others);
  if (a.size() != b.size()) return pairs;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() && b[i].defined() && eligible(dtype_of(a[i])) && eligible(dtype_of(b[i])) &&
        a[i].sizes() == b[i].sizes()) {
      pairs.push_back({a[i], b[i]});
    }
  }
  return pairs;
}

// Whether there was room for it.
bool wait_for_gradient(SiteId site, const at::Tensor& result, at::Tensor difference, bool ran) {
  if (!difference.defined() || !result.requires_grad() || result.is_leaf()) return true;
  const std::int64_t bytes = difference.numel() * 2;
  std::uint64_t number = 0;
  {
    const std::lock_guard guard(differences().mutex);
    Differences& kept = differences();
    if (kept.bytes + bytes > kMostBytes) return false;
    kept.bytes += bytes;
    number = ++kept.made;
    kept.by_number.emplace(number, Difference{std::move(difference), site, ran});
  }
  auto waiting = std::make_shared<const Waiting>(number);
  result.register_hook([waiting](const at::Tensor& gradient) { waiting->gradient(gradient); });
  return true;
}

// The arguments that the call was given, before its casts, in float32.
at::Tensor as_given(const MeasuredCall& context, const at::Tensor& argument) {
  for (const auto& [source, result] : context.casts) {
    if (result.is_same(argument)) return in_float32(source);
  }
  return in_float32(argument);
}

// Whether a call of the site has made the tensor. It would be rounded already if the site ran low:
// to round it again would count its error twice, as of two additions to one residual stream.
bool made_by(const at::Tensor& tensor, SiteId site) {
  if (!tensor.has_storage()) return false;
  const std::lock_guard guard(all().mutex);
  const History* history = all().histories.find(tensor);
  return history != nullptr && history->maker == site;
}

bool has_low(c10::ArrayRef<c10::IValue> arguments, const CastTensors& casts = {}) {
  const auto tensors = tensors_in(arguments);
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    // A kernel of autocast casts behind the beginning of the call, a patched op before it.
    const auto cast = std::find_if(casts.begin(), casts.end(),
                                   [&](const auto& pair) { return pair.first.is_same(tensor); });
    const at::Tensor& ran = cast == casts.end() ? tensor : cast->second;
    return ran.defined() && may_be_low(dtype_of(ran));
  });
}

// Numbers that no gradient comes to, since nothing that they are made of requires one (the angles
// of rotary positions): what they would be in float32 from the beginning on. Where they meet
// numbers that require gradients, what they are off by counts for the op that has made most of it.
struct Shadow {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  std::int64_t version = 0;
  at::ScalarType dtype = at::kFloat;
  at::Tensor numbers;  // all of the memory, in a row, in float32
  SiteId origin = report::kNone;
};

struct Shadows {
  ForkSafeMutex mutex;
  std::unordered_map<const c10::StorageImpl*, Shadow> by_memory;
  std::size_t sweep_at = 64;  // entries, from which on those of memory that is gone go
  std::int64_t numbers = 0;
};

Shadows& shadows() { return process_wide<Shadows>(); }

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

// The shadow of a tensor, with its sizes and strides; undefined where it has none.
at::Tensor shadow_of(const at::Tensor& tensor, SiteId* origin = nullptr) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  at::Tensor numbers;
  {
    const std::lock_guard guard(shadows().mutex);
    const auto found = shadows().by_memory.find(tensor.storage().unsafeGetStorageImpl());
    if (found == shadows().by_memory.end()) return {};
    const Shadow& shadow = found->second;
    if (shadow.memory.expired() || shadow.version != version_of(tensor) ||
        shadow.dtype != tensor.scalar_type()) {
      return {};
    }
    if (origin != nullptr) *origin = shadow.origin;
    numbers = shadow.numbers;
  }
  const evidence::OutOfSight out_of_sight;
  return numbers.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void keep_shadow(const at::Tensor& tensor, const at::Tensor& numbers, SiteId origin) {
  const bool whole =
      tensor.has_storage() && tensor.is_non_overlapping_and_dense() &&
      tensor.storage_offset() == 0 &&
      tensor.storage().nbytes() == static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
  if (!whole) return;
  Shadow made{tensor.storage().getWeakStorageImpl(), version_of(tensor), tensor.scalar_type(),
              at::empty({tensor.numel()}, numbers.options().dtype(at::kFloat)), origin};
  made.numbers.as_strided(tensor.sizes(), tensor.strides()).copy_(numbers);
  std::vector<Shadow> gone;  // freed behind the lock
  const std::lock_guard guard(shadows().mutex);
  Shadows& kept = shadows();
  if (kept.by_memory.size() >= kept.sweep_at) {
    std::erase_if(kept.by_memory, [&](auto& entry) {
      if (!entry.second.memory.expired()) return false;
      kept.numbers -= entry.second.numbers.numel();
      gone.push_back(std::move(entry.second));
      return true;
    });
    kept.sweep_at = std::max<std::size_t>(64, 2 * kept.by_memory.size());
  }
  if (kept.numbers + tensor.numel() > kMostShadowNumbers) return;
  kept.numbers += tensor.numel();
  const auto [place, fresh] =
      kept.by_memory.try_emplace(tensor.storage().unsafeGetStorageImpl(), std::move(made));
  if (!fresh) {
    std::swap(place->second, made);
    kept.numbers -= made.numbers.numel();
    gone.push_back(std::move(made));
  }
}

// Results of a call, each with what it inherited errors of, and from which site.
using Inherited = std::vector<std::pair<at::Tensor, std::pair<at::Tensor, SiteId>>>;

bool is_shadowed(c10::ArrayRef<c10::IValue> arguments) {
  const auto tensors = tensors_in(arguments);
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return shadow_of(tensor).defined(); });
}

bool requires_gradient(c10::ArrayRef<at::Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  });
}

// What an argument was given as, or what that would be without the errors made before.
at::Tensor without_errors(const MeasuredCall& context, const at::Tensor& argument, SiteId& origin) {
  for (const auto& [source, result] : context.casts) {
    if (!result.is_same(argument)) continue;
    const at::Tensor shadow = shadow_of(source, &origin);
    return shadow.defined() ? shadow : in_float32(source);
  }
  const at::Tensor shadow = shadow_of(argument, &origin);
  return shadow.defined() ? shadow : in_float32(argument);
}

void follow_shadows(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                    const std::vector<Compared>& given, Inherited& inherited) {
  SiteId origin = report::kNone;
  const auto right = evidence::rerun(
      *context.op, context.arguments,
      [&](const at::Tensor& argument) { return without_errors(context, argument, origin); });
  const auto inputs = tensors_in(context.arguments);
  const bool constant = !requires_gradient(inputs);
  if (origin == report::kNone) {
    // Here the first error is made.
    if (!constant) return;
    for (const auto& [result, full] : given) keep_shadow(result, in_float32(full), context.site);
    return;
  }
  if (!right) return;
  const auto pairs = compared(results, *right);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const at::Tensor result = pairs[i].result.detach();
    const at::Tensor full = in_float32(pairs[i].other);
    const at::Tensor own = i < given.size() ? in_float32(given[i].other) : in_float32(result);
    at::Tensor difference;
    const double before = evidence::error_of(own, full, &difference).squares;
    if (!constant) {
      inherited.push_back({pairs[i].result, {difference, origin}});
      continue;
    }
    const double here = evidence::error_of(result, own, nullptr).squares;
    keep_shadow(pairs[i].result, full, here > before ? context.site : origin);
  }
}

void measure_low_run(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                     Values& values, std::vector<std::pair<at::Tensor, at::Tensor>>& waiting,
                     Inherited& inherited) {
  const auto reference =
      evidence::rerun(*context.op, context.arguments,
                      [&](const at::Tensor& argument) { return as_given(context, argument); });
  if (!reference) {
    values.unmeasured = 1;
    return;
  }
  const auto pairs = compared(results, *reference);
  if (!context.backward) follow_shadows(context, results, pairs, inherited);
  for (const auto& [result, wanted] : pairs) {
    at::Tensor difference;
    const at::Tensor full = in_float32(wanted);
    const report::Error error = evidence::error_of(
        result.detach(), full, !context.backward && result.requires_grad() ? &difference : nullptr);
    (context.backward ? values.backward : values.ran).add(error);
    if (!context.backward && here().measure.what_if) values.range.add(evidence::range_of(full));
    waiting.emplace_back(result, difference);
  }
  if (!context.backward) values.low = values.ran;
}

void measure_what_if(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                     Values& values, std::vector<std::pair<at::Tensor, at::Tensor>>& waiting) {
  const at::ScalarType low = scalar_type(here().measure.low);
  // Of a norm the lower list casts the input alone (D14).
  const std::string_view name = context.op->handle.schema().name();
  const bool norm = is_norm(name.substr(std::min(kNamespace.size(), name.size())));
  const auto round = [&](const at::Tensor& argument) {
    const bool input = context.arguments.front().isTensor() &&
                       context.arguments.front().toTensor().is_same(argument);
    const bool casts = eligible(dtype_of(argument)) && (input || !norm);
    return casts && !made_by(argument, context.site) ? argument.detach().to(low) : argument;
  };
  std::optional<torch::jit::Stack> other;
  const auto inputs = tensors_in(context.arguments);
  const bool chained = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& tensor) {
    return tensor.defined() && made_by(tensor, context.site);
  });
  if (!chained) other = evidence::rerun(*context.op, context.arguments, round);
  // Where the device has no low kernel: the same by rounding what goes in and comes out.
  if (!other) {
    other = evidence::rerun(*context.op, context.arguments, [&](const at::Tensor& argument) {
      return in_float32(round(argument));
    });
  }
  for (const c10::IValue& result : results) {
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const at::Tensor full = result.toTensor().detach();
    if (dtype_of(full) != DType::Float32) continue;
    values.range.add(evidence::range_of(full));
  }
  if (!other) {
    values.unmeasured = 1;
    return;
  }
  for (const auto& [result, lower] : compared(results, *other)) {
    if (dtype_of(result) != DType::Float32) continue;
    at::Tensor difference;
    const at::Tensor rounded = lower.scalar_type() == low ? lower : lower.to(low);
    values.low.add(evidence::error_of(rounded, result.detach(),
                                      result.requires_grad() ? &difference : nullptr));
    waiting.emplace_back(result, difference);
  }
}

// A node of a backward pass begins: what runs in it is counted with the call that made it.
std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& node) {
  Frame* frame = top();
  if (frame != nullptr && frame->kind == Frame::Kind::Backward && node.seqNr() >= 0)
    frame->call.site = site_of_node(static_cast<std::uint64_t>(node.seqNr()));
  return nullptr;
}

}  // namespace

void start_measuring(const report::Measure& measure) {
  const std::lock_guard guard(all().mutex);
  const bool first = detail::measuring.fetch_add(1) == 0;
  report::Measure& now = here().measure;
  now = {.errors = measure.errors || (!first && now.errors),
         .what_if = measure.what_if || (!first && now.what_if),
         .low = measure.low};
  if (first) {
    keep_nodes(true);
    here().callback = at::addGlobalCallback(
        at::RecordFunctionCallback(node_begins).scopes({at::RecordScope::BACKWARD_FUNCTION}));
    static_cast<void>(torch_private::op_listeners());  // see look_at_callbacks()
  }
}

void stop_measuring() {
  if (detail::measuring.fetch_sub(1) > 1) return;
  {
    const std::lock_guard guard(all().mutex);
    at::removeCallback(here().callback);
    static_cast<void>(torch_private::op_listeners());
  }
  keep_nodes(false);
  decltype(Shadows::by_memory) gone;
  {
    const std::lock_guard guard(shadows().mutex);
    gone.swap(shadows().by_memory);
    shadows().numbers = 0;
  }
  decltype(Differences::by_number) unused;
  const std::lock_guard guard(differences().mutex);
  unused.swap(differences().by_number);
  differences().bytes = 0;
}

// Numbers as they are in another dtype.
bool is_copy(const evidence::Op& op) {
  const std::string_view name = op.handle.schema().name();
  return name == "aten::_to_copy" || name == "aten::clone";
}

// An op that moves numbers about: the shadow of what it was given goes with them.
void move_shadow(const MeasuredCall& context, const std::vector<c10::IValue>& results) {
  const evidence::OutOfSight out_of_sight;
  SiteId origin = report::kNone;
  const auto without = [&](const at::Tensor& argument) {
    return without_errors(context, argument, origin);
  };
  auto moved = std::optional<torch::jit::Stack>();
  if (is_copy(*context.op)) {
    moved = torch::jit::Stack{without(context.arguments[0].toTensor())};
  } else {
    moved = evidence::rerun(*context.op, context.arguments, without);
  }
  if (!moved || origin == report::kNone) return;
  for (const auto& [result, numbers] : compared(results, *moved)) {
    if (!shadow_of(result).defined()) keep_shadow(result, in_float32(numbers), origin);
  }
}

std::unique_ptr<at::ObserverContext> measured_call(Thread& thread, const at::RecordFunction& call) {
  if (thread.measuring > 0) {
    ++thread.measuring;
    return std::make_unique<MeasuredCall>();
  }
  Frame* frame = counted_with(thread);
  if (frame == nullptr || frame->call.site == report::kNone) return nullptr;
  const evidence::Op* op = evidence::op_of(call);
  const bool backward = frame->kind == Frame::Kind::Backward;
  if (op == nullptr) return nullptr;
  const auto inputs = call.inputs();
  if (!backward && op->moves && is_shadowed(inputs)) {
    auto moving = std::make_unique<MeasuredCall>();
    moving->op = op;
    moving->arguments.assign(inputs.begin(), inputs.end());
    moving->epoch = thread.epoch;
    ++thread.measuring;
    return moving;
  }
  if (!op->repeatable || (!backward && is_transparent(*frame, *op))) return nullptr;
  if (!evidence::may_rerun(*op, inputs)) return nullptr;
  // Without what-ifs only that is measured which ran low.
  const bool may_cast = !backward && autocast::this_thread.state != nullptr;
  if ((backward || !here().measure.what_if) && !may_cast && !has_low(inputs)) return nullptr;
  auto context = std::make_unique<MeasuredCall>();
  context->op = op;
  context->arguments = evidence::kept(*op, inputs);
  if (frame->kind == Frame::Kind::Decided) context->casts = frame->cast_tensors;
  if (frame == &thread.frames.back()) frame->measured = context.get();
  context->site = frame->call.site;
  context->epoch = thread.epoch;
  context->backward = backward;
  ++thread.measuring;
  return context;
}

void end_measured(Thread& thread, const at::RecordFunction& call, const MeasuredCall& measured) {
  const MeasuredCall* context = &measured;
  if (thread.measuring > 0) --thread.measuring;
  if (context->op == nullptr || call.outputs().empty()) return;  // the op has raised
  if (context->op->moves) return move_shadow(*context, call.outputs());
  const std::uint64_t start = now_ns();
  Values values;
  std::vector<std::pair<at::Tensor, at::Tensor>> waiting;
  (context->backward ? values.backward_calls : values.calls) = 1;
  const bool low = has_low(context->arguments, context->casts);
  const bool shadowed =
      !context->backward &&
      (is_shadowed(context->arguments) ||
       std::any_of(context->casts.begin(), context->casts.end(),
                   [](const auto& cast) { return shadow_of(cast.first).defined(); }));
  if (!low && !shadowed && !here().measure.what_if) return;
  Inherited inherited;
  {
    const evidence::OutOfSight out_of_sight;
    if (low) {
      measure_low_run(*context, call.outputs(), values, waiting, inherited);
    } else if (shadowed) {
      follow_shadows(*context, call.outputs(), {}, inherited);
    }
    if (!low && here().measure.what_if) {
      measure_what_if(*context, call.outputs(), values, waiting);
    }
  }
  bool room = true;
  for (auto& [result, difference] : waiting) {
    room = wait_for_gradient(context->site, result, std::move(difference), low) && room;
  }
  for (auto& [result, from] : inherited) {
    room = wait_for_gradient(from.second, result, std::move(from.first), true) && room;
  }
  if (!room) values.unmeasured = 1;
  for (auto outer = thread.frames.rbegin(); outer != thread.frames.rend(); ++outer) {
    if (!outer->shown) continue;
    outer->inside_ns += now_ns() - start;
    break;
  }
  const std::lock_guard guard(all().mutex);
  if (context->epoch != epoch.load(std::memory_order_relaxed)) return;
  for_listeners([&](report::Listener& listener) { listener.measured(context->site, values); });
}

}  // namespace habana_mp::watch
