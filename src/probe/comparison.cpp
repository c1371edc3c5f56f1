#include "probe/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "cast/tensors.h"
#include "evidence/differences.h"
#include "evidence/numbers.h"
#include "evidence/rerun.h"
#include "evidence/shadows.h"
#include "probe/inherited_errors.h"
#include "probe/measures.h"
#include "watch/observatory.h"

namespace habana_mp::probe {
namespace {

using report::Unmeasured;
using watch::all;

constexpr std::size_t kMostCandidates = 64;  // that a call is compared with
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

bool same_dtypes(const RecordedCall& a, const RecordedCall& b) {
  const auto same = [](const RecordedArgument& x, const RecordedArgument& y) {
    return x.ran == y.ran;
  };
  return std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(),
                    same);
}

bool same_results(const RecordedCall& a, const RecordedCall& b) {
  return std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(),
                    [](const auto& x, const auto& y) { return x.hash == y.hash; });
}

// Without the way in which it writes its result.
std::string_view plain_name(std::string_view inner) {
  if (inner.ends_with('_') && !inner.ends_with("__")) inner.remove_suffix(1);
  return inner;
}

// By module and op: how calls of two runs are paired.
std::string key_of(const report::Site& site, const RecordedCall& call) {
  return site.module + '\n' + std::string(plain_name(call.inner)) + (call.backward ? "\nb" : "\nf");
}

// The arguments of the call as they are in the first run, those left alone that calls have made.
std::vector<c10::IValue> as_first(const RunningCall& running) {
  std::vector<c10::IValue> arguments = running.arguments;
  const RecordedCall& first = *running.match;
  std::size_t place = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (i < first.others.size() && !first.others[i].isNone()) arguments[i] = first.others[i];
    arguments[i] = evidence::with_tensors(arguments[i], [&](const at::Tensor& tensor) {
      const std::size_t own = place++;
      if (!tensor.defined()) return tensor;
      // Class numbers and indices may be of another table: they stay, with the weights.
      const bool number = torch_private::is_wrapped_number(tensor);
      if (!number || own >= first.leaves.size() || !first.leaves[own].defined()) return tensor;
      return first.leaves[own];
    });
  }
  return arguments;
}

// Whether what stays of this run may be mixed with what the first one was given: indices and sizes
// are of other tensors, and not all kernels look whether they lie inside of these.
bool fits_first(const RunningCall& running) {
  const RecordedCall &own = running.noted, &first = *running.match;
  for (std::size_t i = 0; i < std::min(own.arguments.size(), first.arguments.size()); ++i) {
    if (running.takes_leaf(i) && own.arguments[i].sizes != first.arguments[i].sizes) return false;
  }
  const auto tensors = tensors_of(running.arguments);
  const bool indexed = std::ranges::any_of(tensors, [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() > 0 &&
           c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  });
  if (!indexed && !running.backward) return true;
  return std::ranges::equal(own.others, first.others, [](const auto& a, const auto& b) {
    if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
    if (a.isIntList() && b.isIntList()) return a.toIntVector() == b.toIntVector();
    return a.isInt() == b.isInt() && a.isIntList() == b.isIntList();
  });
}

// Gradients of the same weights, which are known by the calls that were given them first.
void pair_gradients(Comparison& found) {
  std::map<std::int64_t, std::int64_t> first_weights;  // by those of the second
  for (std::size_t i = 0; i < found.calls.size(); ++i) {
    if (found.calls[i].match == kNoCall) continue;
    const RecordedCall& b = found.second->calls[i];
    const RecordedCall& a = found.first->calls[static_cast<std::size_t>(found.calls[i].match)];
    for (std::size_t k = 0; k < std::min(a.arguments.size(), b.arguments.size()); ++k) {
      if (a.arguments[k].weight != kNoCall && b.arguments[k].weight != kNoCall)
        first_weights.try_emplace(b.arguments[k].weight, a.arguments[k].weight);
    }
  }
  std::multimap<std::int64_t, const evidence::Digest*> first;
  for (const RecordedGradient& gradient : found.first->gradients)
    first.emplace(gradient.weight, &gradient.digest);
  std::vector<evidence::Digest> a, b;
  for (const RecordedGradient& gradient : found.second->gradients) {
    const auto weight = first_weights.find(gradient.weight);
    const auto other = weight == first_weights.end() ? first.end() : first.find(weight->second);
    if (other == first.end()) continue;
    a.push_back(*other->second);
    b.push_back(gradient.digest);
    first.erase(other);
  }
  found.gradients = a.size();
  found.gradient_error = evidence::distance(a, b);
  found.same_gradients = evidence::same_bits(a, b);
}

}  // namespace

void Comparer::start(std::shared_ptr<const Recording> first) {
  if (first == nullptr)
    throw std::invalid_argument(
        "record a first run before the second: there is nothing to compare with");
  std::map<std::string, Candidates> candidates;
  for (std::size_t i = 0; i < first->calls.size(); ++i) {
    const RecordedCall& call = first->calls[i];
    if (call.inner.empty()) continue;  // it has raised
    candidates[key_of(first->sites[call.site], call)].calls.push_back(static_cast<std::int64_t>(i));
  }
  Recorder::start();
  const std::lock_guard guard(mutex_);
  first_ = std::move(first);
  candidates_ = std::move(candidates);
  taken_.assign(first_->calls.size(), false);
  compared_.clear();
  changes_.clear();
  projected_.clear();
}

bool Comparer::ran_backward() {
  const std::lock_guard guard(mutex_);
  return recording_ != nullptr && recording_->ran_backward;
}

void Comparer::begin_projection() {
  paused_.store(true);
  const std::lock_guard guard(mutex_);
  changes_.clear();
}

void Comparer::end_projection() {
  {
    const std::lock_guard guard(mutex_);
    for (const auto& [site, change] : std::exchange(changes_, {}))
      projected_[site] += change * change;
  }
  paused_.store(false);
}

// Below zero where the two have nothing in common but their op and place.
int Comparer::likeness(const RecordedCall& call, const RecordedCall& candidate) const {
  if (call.arguments.size() != candidate.arguments.size()) return -8;
  int likeness = call.constants == candidate.constants ? 1 : 0;
  likeness += candidate.outer == kNoCall ? 2 : 0;
  bool agrees = call.arguments.size() < 2;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const RecordedArgument& a = candidate.arguments[i];
    const RecordedArgument& b = call.arguments[i];
    const auto maker = compared_.find(b.maker);
    if (a.hash == b.hash) {
      likeness += 4;
      agrees = true;
    } else if (maker != compared_.end() && a.maker != kNoCall && maker->second.match == a.maker) {
      likeness += 3;
      agrees = true;
    } else {
      likeness += a.sizes != b.sizes ? -2 : a.maker == b.maker ? 1 : 0;
    }
  }
  return agrees ? likeness : -1;
}

bool Comparer::is_taken(std::int64_t candidate) const {
  // With a call goes what is inside of it.
  for (std::int64_t i = candidate; i != kNoCall;
       i = first_->calls[static_cast<std::size_t>(i)].outer) {
    if (taken_[static_cast<std::size_t>(i)]) return true;
  }
  return false;
}

std::int64_t Comparer::match_of(const RecordedCall& call, const std::string& key) {
  const auto found = candidates_.find(key);
  if (found == candidates_.end()) return kNoCall;
  Candidates& candidates = found->second;
  std::int64_t best = kNoCall;
  int most = std::numeric_limits<int>::min();
  std::size_t seen = 0;
  for (std::size_t i = candidates.next; i < candidates.calls.size() && seen < kMostCandidates;
       ++i) {
    const std::int64_t candidate = candidates.calls[i];
    if (is_taken(candidate)) {
      candidates.next += i == candidates.next ? 1 : 0;
      continue;
    }
    ++seen;
    const RecordedCall& there = first_->calls[static_cast<std::size_t>(candidate)];
    const int like = likeness(call, there);
    if (like <= most || like < 0) continue;
    most = like;
    best = candidate;
  }
  if (best != kNoCall) taken_[static_cast<std::size_t>(best)] = true;
  return best;
}

void Comparer::wait(Off off) {
  evidence::wait_for_gradient(off.result, std::move(off.difference), std::move(off.inner),
                              report::kNone, [this, site = off.site](double change, double, bool) {
                                const std::lock_guard guard(mutex_);
                                changes_[site] += change;
                              });
}

// How far the call is from itself as the first run ran it, on what it was given here. Where it
// cannot run again, what it differs by is made here if it was given the same.
double Comparer::made_by(RunningCall& running, const std::vector<c10::IValue>& results,
                         ComparedCall& compared, bool same_inputs) {
  const bool kept = !running.match->others.empty() || running.match->arguments.empty();
  if (compared.difference == Difference::Given && !kept) {  // it ran in another process
    const bool all_given = std::all_of(
        compared.arguments.begin(), compared.arguments.end(),
        [](const auto& each) { return each.maker == kNoCall && each.first_maker == kNoCall; });
    return all_given ? compared.total : kUnknown;
  }
  const evidence::OutOfSight out_of_sight;
  std::vector<c10::IValue> arguments = as_first(running);
  std::vector<evidence::Compared> pairs;
  compared.why = evidence::why_not_again(*running.op, arguments);
  if (compared.why == Unmeasured::None && !fits_first(running)) compared.why = Unmeasured::Sizes;
  if (compared.why != Unmeasured::Sizes && evidence::may_rerun(*running.op, arguments)) {
    const auto other = evidence::rerun(*running.op, arguments, [&](const at::Tensor& argument) {
      return running.reference(argument, running.given(argument));
    });
    if (other) pairs = evidence::compared(results, *other);
    if (!other) compared.why = Unmeasured::Kernel;
  }
  if (pairs.empty()) return same_inputs ? compared.total : kUnknown;
  std::vector<Off> waiting;
  if (!running.backward) follow_shadows(running, results, pairs, waiting);
  report::Error error;
  for (const auto& [result, reference] : pairs) {
    at::Tensor difference;
    const bool waits = !running.backward && result.requires_grad();
    error.add(evidence::error_of(result.detach(), evidence::in_float32(reference),
                                 waits ? &difference : nullptr));
    waiting.push_back({result, {difference}, running.noted.site});
  }
  find_inner(running, results, waiting);
  for (Off& off : waiting) wait(std::move(off));
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (error.lost > 0) return kInfinite;
  if (error.reference_squares > 0) return std::sqrt(error.squares / error.reference_squares);
  return error.squares > 0 ? kInfinite : 0.0;
}

void Comparer::ended(RunningCall& running, const std::vector<c10::IValue>& results) {
  const RecordedCall& call = running.noted;
  ComparedCall compared;
  std::shared_ptr<const Recording> first;
  std::string key;
  {
    const std::lock_guard guard(all().mutex);
    key = key_of(all().sites[call.site], call);
  }
  {
    const std::lock_guard guard(mutex_);
    if (first_ == nullptr) return;
    first = first_;
    compared.match = match_of(call, key);
  }
  const bool shadowed = !call.backward && is_shadowed(running);
  if (shadowed && running.op->moves) move_shadow(running, results);
  if (compared.match != kNoCall) {
    const RecordedCall& there = first->calls[static_cast<std::size_t>(compared.match)];
    running.match = &there;
    bool leaf_differs = false;
    for (std::size_t i = 0; i < std::min(call.arguments.size(), there.arguments.size()); ++i) {
      const RecordedArgument& a = there.arguments[i];
      const RecordedArgument& b = call.arguments[i];
      compared.seen = compared.seen && a.seen && b.seen;
      if (a.hash == b.hash) continue;
      compared.arguments.push_back({b.maker, a.maker});
      leaf_differs = leaf_differs || (a.maker == kNoCall && b.maker == kNoCall);
    }
    for (const evidence::Digest& result : call.results)
      compared.seen =
          compared.seen && (result.hash != 0 || result.dtype == at::ScalarType::Undefined);
    const bool lower = !same_dtypes(there, call);
    const bool same_inputs =
        compared.arguments.empty() && call.arguments.size() == there.arguments.size();
    compared.total = evidence::distance(there.results, call.results);
    compared.flips = evidence::flips_of(there.choices, call.choices);
    if (same_results(there, call)) {
      compared.difference = Difference::None;
    } else if (leaf_differs) {
      compared.difference = Difference::Given;
    } else if (running.op->moves && !same_inputs) {
      compared.difference = Difference::PassedOn;
    } else if (call.constants != there.constants) {
      compared.difference = Difference::Given;
    } else if (lower) {
      compared.difference = Difference::Precision;
    } else if (same_inputs) {
      compared.difference = Difference::Result;
      compared.made = compared.total;
    } else {
      compared.difference = Difference::PassedOn;
    }
    const bool made =
        compared.difference == Difference::Given || compared.difference == Difference::Precision;
    const bool inherits = compared.difference == Difference::PassedOn && shadowed;
    if (made) {
      compared.made = made_by(running, results, compared, same_inputs);
    } else if (inherits) {
      made_by(running, results, compared, same_inputs);  // for what it inherits
    }
  } else {
    compared.made = compared.total = kUnknown;
  }
  const std::lock_guard guard(mutex_);
  compared_[running.number] = std::move(compared);
}

std::optional<Comparison> Comparer::stop_comparing(const std::vector<at::Tensor>& returned) {
  Comparison comparison;
  comparison.second = stop(returned);
  if (comparison.second == nullptr) return std::nullopt;
  {
    const std::lock_guard guard(mutex_);
    comparison.first = std::exchange(first_, nullptr);
    comparison.changes = std::exchange(changes_, {});
    for (const auto& [site, squares] : std::exchange(projected_, {}))
      comparison.changes[site] = std::sqrt(squares);
    for (std::size_t i = 0; i < comparison.second->calls.size(); ++i) {
      const auto found = compared_.find(static_cast<std::int64_t>(i));
      comparison.calls.push_back(found == compared_.end()
                                     ? ComparedCall{.difference = Difference::None}
                                     : std::move(found->second));
    }
    compared_.clear();
    candidates_.clear();
    taken_.clear();
  }
  evidence::forget_shadows();
  evidence::forget_differences();
  pair_gradients(comparison);
  return comparison;
}

Comparer& comparer() { return process_wide<Comparer>(); }

}  // namespace habana_mp::probe
