#include "probe/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "cast/tensors.h"
#include "evidence/differences.h"
#include "evidence/numbers.h"
#include "evidence/rerun.h"
#include "evidence/shadows.h"
#include "probe/formats.h"
#include "probe/inherited_errors.h"
#include "probe/measures.h"
#include "probe/parts.h"
#include "watch/observatory.h"

namespace habana_mp::probe {
namespace {

using report::Unmeasured;
using watch::all;

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
  if (first.others.empty()) return true;  // of another process nothing is mixed in
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
    // A part of a weight is not the whole.
    if (found.calls[i].match == kNoCall || found.calls[i].partner != Partner::Call) continue;
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

// What is left to do when all calls have been looked at.
Comparison finished(Pairing& pairing, std::shared_ptr<const Recording> second) {
  pair_parts(pairing, *second);
  Comparison comparison;
  comparison.first = pairing.first();
  comparison.second = std::move(second);
  const std::vector<RecordedCall>& calls = comparison.second->calls;
  std::vector<bool> has_paired(calls.size());  // inside of it
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const ComparedCall* found = pairing.compared(static_cast<std::int64_t>(i));
    for (std::int64_t outer = calls[i].outer;
         found != nullptr && found->match != kNoCall && outer != kNoCall;
         outer = calls[static_cast<std::size_t>(outer)].outer)
      has_paired[static_cast<std::size_t>(outer)] = true;
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const ComparedCall* found = pairing.compared(static_cast<std::int64_t>(i));
    // One run may see an op where the other sees its parts.
    const std::int64_t outer = calls[i].outer;
    const bool known = found == nullptr || has_paired[i] ||
                       (outer != kNoCall && !has_paired[static_cast<std::size_t>(outer)] &&
                        found->match == kNoCall);
    comparison.calls.push_back(known ? ComparedCall{.difference = Difference::None} : *found);
  }
  pair_gradients(comparison);
  return comparison;
}

}  // namespace

Comparison compared(std::shared_ptr<const Recording> first, std::shared_ptr<const Recording> second,
                    Terms terms) {
  Pairing pairing(first, std::move(terms));
  for (std::size_t i = 0; i < second->calls.size(); ++i) {
    const RecordedCall& call = second->calls[i];
    const auto number = static_cast<std::int64_t>(i);
    if (call.inner.empty() || pairing.is_inside(number, call)) continue;
    pairing.pair(number, call, second->sites[call.site]);
  }
  return finished(pairing, std::move(second));
}

void Comparer::start(std::shared_ptr<const Recording> first, Terms terms) {
  Pairing pairing(std::move(first), std::move(terms));
  Recorder::start("compare");
  const std::lock_guard guard(mutex_);
  pairing_.emplace(std::move(pairing));
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
                         const Recording& first, ComparedCall& compared) {
  const bool kept = !running.match->others.empty() || running.match->arguments.empty();
  // It ran in another process.
  if (compared.difference == Difference::Given && !kept) return compared.made;
  const evidence::OutOfSight out_of_sight;
  std::vector<c10::IValue> arguments = as_first(running);
  std::vector<evidence::Compared> pairs;
  compared.why = evidence::why_not_again(*running.op, arguments);
  if (compared.why == Unmeasured::None && !fits_first(running)) compared.why = Unmeasured::Sizes;
  if (compared.why != Unmeasured::Sizes && evidence::may_rerun(*running.op, arguments)) {
    const auto as_first_ran = [&](const at::Tensor& argument) {
      return running.reference(argument, running.given(argument));
    };
    const report::Outcome outcome = first.sites[running.match->site].outcome;
    const bool in_8_bits =
        report::is_int8(outcome) && !running.backward && !running.match->results.empty();
    const auto other = in_8_bits
                           ? rerun_in_8_bits(*running.op, arguments, as_first_ran, outcome,
                                             dtype_of_type(running.match->results.front().dtype))
                           : evidence::rerun(*running.op, arguments, as_first_ran);
    if (other) pairs = evidence::compared(results, *other);
    if (!other) compared.why = Unmeasured::Kernel;
  }
  if (pairs.empty()) return compared.same_inputs ? compared.total : kUnknown;
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
  ComparedCall found;
  std::shared_ptr<const Recording> first;
  report::Site site;
  {
    const std::lock_guard guard(all().mutex);
    site = all().sites[call.site];
  }
  {
    const std::lock_guard guard(mutex_);
    if (!pairing_) return;
    first = pairing_->first();
    found = pairing_->pair(running.number, call, site);
  }
  std::vector<Off> returned;
  leave_functions(running.arguments, returned);
  for (Off& off : returned) wait(std::move(off));
  const bool shadowed = !call.backward && is_shadowed(running);
  if (shadowed && running.op->moves) move_shadow(running, results);
  if (found.match == kNoCall) return;
  running.match = &first->calls[static_cast<std::size_t>(found.match)];
  const bool made =
      found.difference == Difference::Given || found.difference == Difference::Precision;
  const bool inherits = found.difference == Difference::PassedOn && shadowed;
  if (made) {
    found.made = made_by(running, results, *first, found);
    const std::lock_guard guard(mutex_);
    ComparedCall* own = pairing_ ? pairing_->compared(running.number) : nullptr;
    if (own == nullptr) return;
    own->made = own->rerun = found.made;
    own->why = found.why;
  } else if (inherits) {
    made_by(running, results, *first, found);  // for what it inherits
  }
}

std::optional<Comparison> Comparer::stop_comparing(const std::vector<at::Tensor>& returned) {
  std::shared_ptr<Recording> second = stop(returned);
  if (second == nullptr) return std::nullopt;
  std::optional<Pairing> pairing;
  std::map<report::SiteId, double> changes;
  {
    const std::lock_guard guard(mutex_);
    pairing.swap(pairing_);
    changes = std::exchange(changes_, {});
    for (const auto& [site, squares] : std::exchange(projected_, {}))
      changes[site] = std::sqrt(squares);
  }
  evidence::forget_shadows();
  evidence::forget_differences();
  if (!pairing) return std::nullopt;
  Comparison comparison = finished(*pairing, std::move(second));
  comparison.changes = std::move(changes);
  return comparison;
}

Comparer& comparer() { return process_wide<Comparer>(); }

}  // namespace habana_mp::probe
