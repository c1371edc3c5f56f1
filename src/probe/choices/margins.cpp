#include "probe/choices/margins.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/name_numbers.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "cast/tensors.h"
#include "evidence/graphs/graph_place.h"
#include "evidence/numbers.h"
#include "probe/choices/twins.h"
#include "report/choice.h"
#include "watch/backward_pass.h"
#include "watch/observatory.h"

namespace habana_mp::probe {
namespace {

using evidence::OutOfSight;
using report::SiteId;

constexpr std::int64_t kPasses = 8;      // for all choices of a step together, at least one each
constexpr std::int64_t kOtherwise = 32;  // of so many choices one is made otherwise
constexpr std::int64_t kMeasured = 8;    // of so many one is measured: errors flip the narrow ones
constexpr std::int64_t kFewMeasured = 16;  // or all of these

constexpr std::ptrdiff_t kMostOfSite = 8;  // choices of a site that wait for a loss

constexpr std::array<std::string_view, 5> kChoosing = {"aten::topk", "aten::argmax", "aten::argmin",
                                                       "aten::max", "aten::min"};

// What an op chooses: the largest numbers of each row.
struct Best {
  std::int64_t count = 1;
  std::int64_t dim = -1;
  bool largest = true;
  bool keeps_values = true;
  bool keeps_dim = true;
};

std::optional<Best> best_of(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const std::string_view name = op.handle.schema().name();
  if (!may_choose(name) || arguments.size() < 3 || !arguments[1].isInt()) return std::nullopt;
  Best best;
  if (name == "aten::topk") {
    if (arguments.size() < 4) return std::nullopt;
    best.count = arguments[1].toInt();
    best.dim = arguments[2].toInt();
    best.largest = arguments[3].toBool();
    return best;
  }
  best.dim = arguments[1].toInt();
  best.largest = name.ends_with("max");
  best.keeps_values = name == "aten::max" || name == "aten::min";
  best.keeps_dim = arguments[2].toBool();
  return best;
}

// The best numbers of each row and one more, the rows last, and their places there.
struct Ranked {
  at::Tensor values, places;  // (rows, count + 1), the best first

  Ranked(const at::Tensor& numbers, const Best& best) {
    const at::Tensor rows = numbers.movedim(best.dim, -1);
    const auto top = at::topk(rows, best.count + 1, -1, best.largest, true);
    sizes = rows.sizes().slice(0, rows.dim() - 1).vec();
    values = std::get<0>(top).reshape({-1, best.count + 1});
    places = std::get<1>(top).reshape({-1, best.count + 1});
    scales = (values >= 0).all().item<bool>() ? last().clamp_min(FLT_MIN) : at::ones_like(last());
  }
  at::Tensor last() const { return values.select(1, values.size(1) - 2); }
  // Between the last one that is chosen and the first that is not, by `scales`.
  at::Tensor margins() const {
    const at::Tensor next = values.select(1, values.size(1) - 1);
    return ((last() - next) / scales).abs().nan_to_num(INFINITY);
  }

  std::vector<std::int64_t> sizes;  // of the rows
  at::Tensor scales;  // the sizes of probabilities, which their errors go with; 1 of other numbers
};

// What the op gives, where in so many rows, those with the narrowest margins, the next one is
// chosen in place of the last.
std::vector<at::Tensor> results_of(const at::Tensor& numbers, const Best& best,
                                   std::int64_t otherwise) {
  Ranked ranked(numbers, best);
  if (otherwise > 0) {
    const at::Tensor rows = ranked.margins().argsort().slice(0, 0, otherwise);
    for (at::Tensor* each : {&ranked.values, &ranked.places})
      each->select(1, best.count - 1)
          .index_copy_(0, rows, each->select(1, best.count).index_select(0, rows));
  }
  std::vector<at::Tensor> found;
  for (const at::Tensor* each : {&ranked.values, &ranked.places}) {
    if (each == &ranked.values && !best.keeps_values) continue;
    auto sizes = ranked.sizes;
    sizes.push_back(best.count);
    at::Tensor result = each->slice(1, 0, best.count).reshape(sizes).movedim(-1, best.dim);
    if (!best.keeps_dim) result = result.squeeze(best.dim);
    found.push_back(result.contiguous());
  }
  return found;
}

// A choice whose twins are on their way.
struct Pending {
  SiteId site;
  evidence::GraphPlace numbers;
  std::vector<std::int64_t> sizes;  // of the numbers, the rows last
  at::TensorOptions options;
  std::int64_t dim;
  at::Tensor last, next;  // places of the two beside the narrowest margins, in the numbers
  at::Tensor scales;      // of these margins
  report::Choice choice;
};

struct ChoosingStep final : Step {
  std::vector<Pending> pending;  // they keep the graph before them, which the program may let go
  std::uint64_t otherwise = 0;   // of those that were measured
  bool reached = false;          // what is chosen now is of another step
};

struct Choices {
  ForkSafeMutex mutex;
  // Something before may run again in a backward pass, since the last loss: a checkpoint.
  std::atomic<bool> saved_by_hooks{false};
  std::weak_ptr<ChoosingStep> step;
};

Choices& choices() { return process_wide<Choices>(); }

std::map<int, std::uint64_t> bins_of(const at::Tensor& margins) {
  std::map<int, std::uint64_t> bins;
  const at::Tensor numbers = margins.to(at::kCPU).contiguous();
  const float* first = numbers.const_data_ptr<float>();
  for (std::int64_t i = 0; i < numbers.numel(); ++i) ++bins[report::Choice::bin_of(first[i])];
  return bins;
}

// A pass begins at margins times random signs: its changes are those of their sum.
at::Tensor gradient_of(const Pending& pending, std::uint64_t seed) {
  std::vector<float> signs(static_cast<std::size_t>(pending.last.numel()));
  for (std::size_t i = 0; i < signs.size(); ++i)
    signs[i] = (report::hash(seed + i) & 1u) != 0 ? 1.0F : -1.0F;
  const at::Tensor drawn =
      (at::tensor(signs, at::kFloat).to(pending.scales.device()) / pending.scales)
          .to(pending.options);
  at::Tensor gradient = at::zeros(pending.sizes, pending.options);
  gradient.view(-1).index_add_(0, pending.last, drawn);
  gradient.view(-1).index_add_(0, pending.next, -drawn);
  return gradient.movedim(-1, pending.dim).contiguous();
}

template <typename Tell>
void tell(const Tell& told) {
  const std::lock_guard guard(watch::all().mutex);
  watch::for_listeners(told);
}

std::uint32_t number_of_choice(SiteId id) {
  std::string key;
  {
    const std::lock_guard guard(watch::all().mutex);
    const report::Site& site = watch::all().sites[id];
    key = site.op + " in " + site.module + " at " + site.source;
  }
  return number_of(key);
}

void tell_chosen(SiteId site, const report::Choice& choice) {
  const std::uint32_t number = number_of_choice(site);
  tell([&](report::Listener& listener) { listener.chose(site, number, choice); });
}

// False where it may not run, or did not.
bool measure(Pending& pending, std::int64_t passes, std::uint64_t seed) {
  const Aside aside;
  const std::uint32_t number = number_of_choice(pending.site);
  bool ran = true;
  for (std::int64_t pass = 0; pass < passes && ran; ++pass) {
    const at::Tensor gradient =
        gradient_of(pending, report::hash(seed) + static_cast<std::uint64_t>(pass));
    tell([&](report::Listener& listener) { listener.begin_choice(number); });
    ran = pending.numbers.run_backward(gradient);
    tell([&](report::Listener& listener) { listener.end_choice(); });
    if (ran) pending.choice.measured += static_cast<std::uint64_t>(pending.last.numel());
  }
  if (ran) tell_chosen(pending.site, pending.choice);
  return ran;
}

std::shared_ptr<ChoosingStep> step_here() {
  std::shared_ptr<ChoosingStep> last;  // the graphs that it keeps are freed behind the lock
  const std::lock_guard guard(choices().mutex);
  auto step = last = choices().step.lock();
  if (step == nullptr || step->reached || step->lost) {
    step = std::make_shared<ChoosingStep>();
    choices().step = step;
  }
  return step;
}

// `squares`: of what the twins differ by.
void reach(std::uint32_t loss, double squares, Step& reached) {
  if (!std::isfinite(squares)) return;
  auto& step = static_cast<ChoosingStep&>(reached);
  step.reached = true;
  auto pending = std::exchange(step.pending, {});
  const auto passes =
      kPasses / std::max<std::int64_t>(1, static_cast<std::int64_t>(pending.size()));
  for (Pending& each : pending) {
    if (step.lost || !measure(each, std::max<std::int64_t>(1, passes), loss + step.otherwise))
      step.lost = true;
    step.otherwise += each.choice.otherwise;
  }
  if (step.lost || step.otherwise == 0) return;
  tell([&](report::Listener& listener) {
    listener.decided_by_choices(loss, squares, step.otherwise);
  });
}

// Forward passes without a backward one may not keep their graphs for long.
void keep(const std::shared_ptr<ChoosingStep>& step, Pending pending) {
  const auto of_site = std::ranges::count(step->pending, pending.site, &Pending::site);
  if (of_site >= kMostOfSite) {
    step->lost = true;
    step->reached = true;
  }
  if (step->lost) return step->pending.clear();
  step->pending.push_back(std::move(pending));
}

}  // namespace

bool may_choose(std::string_view op) { return std::ranges::find(kChoosing, op) != kChoosing.end(); }

bool is_choice(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (arguments.empty() || !arguments[0].isTensor() || !c10::GradMode::is_enabled()) return false;
  const at::Tensor& numbers = arguments[0].toTensor();
  if (!numbers.defined() || !numbers.requires_grad() || numbers.is_leaf()) return false;
  const auto best = best_of(op, arguments);
  if (!best || numbers.dim() == 0 || numbers.numel() == 0 || best->count < 1) return false;
  const std::int64_t dim = best->dim < 0 ? best->dim + numbers.dim() : best->dim;
  return dim >= 0 && dim < numbers.dim() && best->count < numbers.size(dim) &&
         eligible(dtype_of(numbers)) && evidence::is_readable(numbers);
}

void follow_choice(SiteId site, const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments,
                   const std::vector<c10::IValue>& results) {
  const auto made = tensors_in(results);
  const Best best = *best_of(op, arguments);
  if (made.size() != (best.keeps_values ? 2U : 1U)) return;
  const at::Tensor& numbers = arguments[0].toTensor();
  sweep_twins();
  const std::shared_ptr<ChoosingStep> step = step_here();
  if (choices().saved_by_hooks) step->lost = true;
  const OutOfSight out_of_sight;
  const at::Tensor full = evidence::in_float32(numbers);
  const auto twins = twins_of(numbers).value_or(Twins{full, full, step});
  const Ranked ranked(full, best);
  const at::Tensor margins = ranked.margins();
  const std::int64_t rows = margins.numel();
  const std::int64_t otherwise = std::max<std::int64_t>(1, rows / kOtherwise);
  tell_chosen(site, {.seen = static_cast<std::uint64_t>(rows)});
  for (const at::Tensor* twin : {&twins.chosen, &twins.otherwise}) {
    const bool alike = twin->dim() == full.dim() && twin->size(best.dim) > best.count;
    if (!alike) step->lost = true;
  }
  if (step->lost) return step->pending.clear();
  const auto chosen = results_of(twins.chosen, best, 0);
  const auto others = results_of(twins.otherwise, best, otherwise);
  for (std::size_t i = 0; i < made.size(); ++i) keep_twins(made[i], {chosen[i], others[i], step});

  const std::int64_t measured = std::min(rows, std::max(kFewMeasured, rows / kMeasured));
  const at::Tensor narrow = margins.argsort().slice(0, 0, measured);
  const at::Tensor moved = numbers.movedim(best.dim, -1);
  const at::Tensor two =
      ranked.places.index_select(0, narrow) + (narrow * moved.size(-1)).unsqueeze(1);
  Pending pending{.site = site,
                  .numbers = evidence::GraphPlace(numbers),
                  .sizes = moved.sizes().vec(),
                  .options = full.options().dtype(numbers.scalar_type()),
                  .dim = best.dim,
                  .last = two.select(1, best.count - 1).clone(),
                  .next = two.select(1, best.count).clone(),
                  .scales = ranked.scales.index_select(0, narrow),
                  .choice = {.margins = bins_of(margins),
                             .choices = static_cast<std::uint64_t>(rows),
                             .otherwise = static_cast<std::uint64_t>(otherwise)}};
  keep(step, std::move(pending));
}

void note_saved_tensor_hooks() {
  if (torch_private::has_saved_tensor_hooks()) choices().saved_by_hooks = true;
}

void reach_loss(const at::Tensor& loss, double scale) {
  choices().saved_by_hooks = false;
  const auto twins = twins_of(loss);
  if (!twins) return;
  const OutOfSight out_of_sight;
  const double change = (twins->otherwise - twins->chosen).sum().item<double>() / scale;
  reach(watch::line_here(), change * change, *twins->step);
}

void reach_outputs(c10::ArrayRef<at::Tensor> outputs, int passes) {
  choices().saved_by_hooks = false;
  const OutOfSight out_of_sight;
  double squares = 0;
  std::shared_ptr<Step> step;
  for (const at::Tensor& output : outputs) {
    const auto twins = twins_of(output);
    if (!twins) continue;
    step = twins->step;
    if (twins->chosen.sizes() != twins->otherwise.sizes()) step->lost = true;
    if (!step->lost) squares += evidence::sum_of_squares(twins->otherwise - twins->chosen);
  }
  if (step != nullptr) reach(report::kOutputs, passes * squares, *step);
}

void forget_choices() {
  forget_twins();
  const std::lock_guard guard(choices().mutex);
  choices().step.reset();
  choices().saved_by_hooks = false;
}

}  // namespace habana_mp::probe
