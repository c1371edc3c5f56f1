#include "probe/pairing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "report/module_path.h"

namespace habana_mp::probe {
namespace {

using report::ModulePath;

bool same_results(const RecordedCall& a, const RecordedCall& b) {
  return std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(),
                    [](const auto& x, const auto& y) { return x.hash == y.hash; });
}

bool same_sizes(const RecordedCall& a, const RecordedCall& b) {
  return std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(),
                    [](const auto& x, const auto& y) { return x.sizes == y.sizes; });
}

// Without the way in which it writes its result.
std::string_view plain_name(std::string_view inner) {
  if (inner.ends_with('_') && !inner.ends_with("__")) inner.remove_suffix(1);
  return inner;
}

// By the path of the module and the op: how calls of two runs are paired.
std::string key_of(std::string_view module, const RecordedCall& call) {
  return std::string(ModulePath(module).path) + '\n' + std::string(plain_name(call.inner)) +
         (call.backward ? "\nb" : "\nf");
}

}  // namespace

double rounding_of(const RecordedCall& call) {
  if (!call.moves || call.arguments.empty() || call.results.empty()) return 0;
  const RecordedArgument& given = call.arguments[0];
  const evidence::Digest& made = call.results[0];
  const bool same = given.ran == made.dtype || given.hash == made.hash;
  if (same || !c10::isFloatingType(given.ran) || !c10::isFloatingType(made.dtype)) return 0;
  const auto epsilon = [&]() -> double {
    switch (made.dtype) {
      case at::kDouble:
        return std::numeric_limits<double>::epsilon();
      case at::kFloat:
        return std::numeric_limits<float>::epsilon();
      case at::kHalf:
        return std::numeric_limits<c10::Half>::epsilon();
      case at::kBFloat16:
        return std::numeric_limits<c10::BFloat16>::epsilon();
      default:  // of 8 bits and fewer
        return 0.25;
    }
  };
  return epsilon() / 4;  // the root of the mean square of roundings is a bit less
}

Pairing::Pairing(std::shared_ptr<const Recording> first, Terms terms)
    : first_(std::move(first)), terms_(std::move(terms)) {
  if (first_ == nullptr)
    throw std::invalid_argument(
        "record a first run before the second: there is nothing to compare with");
  for (std::size_t i = 0; i < first_->calls.size(); ++i) {
    const RecordedCall& call = first_->calls[i];
    if (call.inner.empty()) continue;  // it has raised
    const std::string& module = module_of_first(call);
    candidates_[key_of(module, call)].calls.push_back(static_cast<std::int64_t>(i));
    roots_.emplace(ModulePath(module).root);
  }
  taken_.assign(first_->calls.size(), false);
}

const std::string& Pairing::module_of_first(const RecordedCall& call) const {
  return terms_.modules.empty() ? first_->sites[call.site].module : terms_.modules[call.site];
}

ComparedCall* Pairing::compared(std::int64_t number) {
  const auto found = compared_.find(number);
  return found == compared_.end() ? nullptr : &found->second;
}

// A root that the other run does not have may have another name there. Outside of modules is no
// root.
bool Pairing::may_be_root(std::string_view own, std::string_view other) const {
  if (own == other) return true;
  return !own.empty() && !other.empty() && !roots_.contains(own) && !second_roots_.contains(other);
}

std::int64_t Pairing::outermost_of_first(std::int64_t call) const {
  for (std::int64_t i = call; i >= 0; i = first_->calls[static_cast<std::size_t>(i)].outer) {
    if (has_partner(i)) return i;
  }
  return call;
}

std::int64_t Pairing::outermost_of_second(std::int64_t call) const {
  for (std::int64_t i = call; i >= 0;) {
    const auto compared = compared_.find(i);
    if (compared != compared_.end() && compared->second.match != kNoCall) return i;
    const auto outer = outer_.find(i);
    i = outer == outer_.end() ? kNoCall : outer->second;
  }
  return call;
}

// Whether two calls, or what is inside of them, have been paired with each other.
bool Pairing::same_makers(std::int64_t first, std::int64_t second,
                          const ComparedCall** found) const {
  if (first < 0 || second < 0) return false;
  const auto maker = compared_.find(outermost_of_second(second));
  if (maker == compared_.end() || maker->second.match == kNoCall) return false;
  if (found != nullptr) *found = &maker->second;
  const std::int64_t outermost = outermost_of_first(first);
  const auto& more = maker->second.more;
  return maker->second.match == outermost ||
         std::find(more.begin(), more.end(), outermost) != more.end();
}

bool Pairing::same_argument(const RecordedArgument& first, const RecordedArgument& second) const {
  if (first.hash == second.hash) return true;
  const ComparedCall* maker = nullptr;
  return terms_.tolerance > 0 && same_makers(first.maker, second.maker, &maker) &&
         maker->total <= terms_.tolerance;
}

bool Pairing::same_precision(const RecordedCall& first, const RecordedCall& second) const {
  const report::Outcome a = first_->sites[first.site].outcome;
  const report::Outcome b = second_outcomes_.at(second.site);
  const bool in_8_bits = !second.backward && (report::is_int8(a) || report::is_int8(b));
  if (in_8_bits && a != b) return false;
  return std::ranges::equal(first.arguments, second.arguments, {}, &RecordedArgument::ran,
                            &RecordedArgument::ran);
}

// Below zero where the two have nothing in common but their op and place.
int Pairing::likeness(const RecordedCall& call, const RecordedCall& candidate,
                      bool in_module) const {
  if (call.arguments.size() != candidate.arguments.size()) return -8;
  int likeness = call.constants == candidate.constants ? 1 : 0;
  likeness += candidate.outer == kNoCall ? 2 : 0;
  bool agrees = call.arguments.size() < 2 || (in_module && same_sizes(call, candidate));
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const RecordedArgument& a = candidate.arguments[i];
    const RecordedArgument& b = call.arguments[i];
    if (a.hash == b.hash) {
      likeness += 4;
      agrees = true;
    } else if (same_makers(a.maker, b.maker, nullptr)) {
      likeness += 3;
      agrees = true;
    } else {
      likeness += a.sizes != b.sizes ? -2 : a.maker == b.maker ? 1 : 0;
    }
  }
  return agrees ? likeness : -1;
}

bool Pairing::is_taken(std::int64_t candidate) const {
  for (std::int64_t i = candidate; i != kNoCall;
       i = first_->calls[static_cast<std::size_t>(i)].outer) {
    if (has_partner(i)) return true;
  }
  return false;
}

std::int64_t Pairing::match_of(const RecordedCall& call, const std::string& module) {
  const auto found = candidates_.find(key_of(module, call));
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
    const RecordedCall& there = first_->calls[static_cast<std::size_t>(candidate)];
    if (!may_be_root(ModulePath(module).root, ModulePath(module_of_first(there)).root)) continue;
    ++seen;
    const int like = likeness(call, there, !module.empty());
    if (like <= most || like < 0) continue;
    most = like;
    best = candidate;
  }
  if (best != kNoCall) take(best);
  return best;
}

bool Pairing::is_inside(std::int64_t number, const RecordedCall& call) {
  if (call.outer == kNoCall) return false;
  outer_[number] = call.outer;
  return outermost_of_second(number) != number;
}

ComparedCall& Pairing::pair(std::int64_t number, const RecordedCall& call,
                            const report::Site& site) {
  second_roots_.emplace(ModulePath(site.module).root);
  second_outcomes_.emplace(call.site, site.outcome);
  ComparedCall compared;
  compared.match = match_of(call, site.module);
  if (compared.match == kNoCall) {
    compared.made = compared.total = kUnknown;
  } else {
    const RecordedCall& there = first_->calls[static_cast<std::size_t>(compared.match)];
    compared.total = evidence::distance(there.results, call.results);
    compared.flips = evidence::flips_of(there.choices, call.choices);
    for (std::size_t i = 0; i < std::min(call.arguments.size(), there.arguments.size()); ++i)
      compared.seen = compared.seen && there.arguments[i].seen && call.arguments[i].seen;
    for (const evidence::Digest& result : call.results)
      compared.seen =
          compared.seen && (result.hash != 0 || result.dtype == at::ScalarType::Undefined);
    classify(compared, call);
  }
  return compared_[number] = std::move(compared);
}

void Pairing::release(ComparedCall& compared) {
  const auto shares = [&](const auto& each) {
    return &each.second != &compared && each.second.match == compared.match;
  };
  if (std::none_of(compared_.begin(), compared_.end(), shares))
    taken_[static_cast<std::size_t>(compared.match)] = false;
  compared = {.made = kUnknown, .total = kUnknown};
}

void Pairing::classify(ComparedCall& compared, const RecordedCall& call) const {
  const RecordedCall& there = first_->calls[static_cast<std::size_t>(compared.match)];
  const bool whole = compared.partner == Partner::Call;
  bool leaf_differs = false, all_leaves = true;
  const bool same_op = compared.partner != Partner::Value;
  compared.arguments.clear();
  for (std::size_t i = 0; !same_op && i < call.arguments.size(); ++i) {
    const std::int64_t maker = outermost_of_second(call.arguments[i].maker);
    const auto made = compared_.find(maker);
    if (made == compared_.end() || made->second.difference == Difference::None) continue;
    compared.arguments.push_back({maker, made->second.match});
  }
  const std::size_t both = std::min(call.arguments.size(), there.arguments.size());
  for (std::size_t i = 0; same_op && i < both; ++i) {
    const RecordedArgument& a = there.arguments[i];
    const RecordedArgument& b = call.arguments[i];
    if (same_argument(a, b)) continue;
    const bool leaf = a.maker == kNoCall && b.maker == kNoCall;
    // Of a weight that is another part than its partner nothing is known.
    if (leaf && !whole && a.sizes != b.sizes) continue;
    compared.arguments.push_back({outermost_of_second(b.maker), outermost_of_first(a.maker)});
    leaf_differs = leaf_differs || leaf;
    all_leaves = all_leaves && leaf;
  }
  compared.same_inputs =
      compared.arguments.empty() && (!same_op || call.arguments.size() == there.arguments.size());
  const bool near = terms_.tolerance > 0 && compared.total <= terms_.tolerance;
  compared.made = kUnknown;
  if (near || (whole && same_results(there, call)) || (!whole && compared.total == 0)) {
    compared.difference = Difference::None;
    compared.made = 0;
  } else if (leaf_differs) {
    compared.difference = Difference::Given;
    if (all_leaves) compared.made = compared.total;
  } else if (call.moves && !compared.same_inputs) {
    compared.difference = Difference::PassedOn;
    compared.made = 0;
  } else if (whole && call.constants != there.constants) {
    compared.difference = Difference::Given;
    compared.made = compared.same_inputs ? compared.total : kUnknown;
  } else if (same_op && !same_precision(there, call)) {
    compared.difference = Difference::Precision;
    compared.made = compared.same_inputs ? compared.total : compared.rerun;
  } else if (compared.same_inputs) {
    compared.difference = Difference::Result;
    compared.made = compared.total;
  } else {
    compared.difference = Difference::PassedOn;
    compared.made = 0;
  }
}

}  // namespace habana_mp::probe
