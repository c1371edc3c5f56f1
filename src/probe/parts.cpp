#include "probe/parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "evidence/digest.h"
#include "probe/slices.h"
#include "report/module_path.h"

namespace habana_mp::probe {
namespace {

using evidence::Digest;
using evidence::Distance;

constexpr std::int64_t kMostGroups = 1024;  // heads, or groups of heads
constexpr double kAlike = 0.1;  // results that are as near are those of the same formula
// One op or another of them multiplies with a weight.
constexpr std::array kProducts = {"aten::linear", "aten::addmm", "aten::mm",
                                  "aten::matmul", "aten::bmm",   "aten::baddbmm"};

// A call of one of the runs that has no partner yet, or several that are looked at as one.
struct Open {
  std::vector<std::int64_t> numbers;
  const RecordedCall* call = nullptr;
  std::string_view module;
  bool is_open = true;

  std::string_view path() const { return report::ModulePath(module).path; }
};

struct Group {
  std::vector<Open*> first, second;
};

// The parts of a whole, in the order of their places in it.
struct Division {
  std::vector<Open*> parts{};
  std::int64_t groups = 1;  // see Slice
};
using Groups = std::map<std::string, Group>;

std::string_view kind_of(const RecordedCall& call) {
  const bool product = std::find(kProducts.begin(), kProducts.end(), call.inner) != kProducts.end();
  return product ? "product" : std::string_view(call.inner);
}

double known(const Distance& distance) { return distance.pairs() == 0 ? NAN : distance.value(); }

// In parts of the size of the whole: one part may be noise, such as the gradient of a bias of keys.
double of_part(const Open& whole, const Distance& distance) {
  const Digest& all = whole.call->results[0];
  const double size =
      all.norm / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, numel_of(all))));
  return distance.pairs() == 0 ? NAN : distance.beside(size);
}

class Parts {
 public:
  Parts(Pairing& pairing, const Recording& second) : pairing_(pairing), second_(second) {}

  void run() {
    find_open();
    // A module that one run calls once for a whole sequence, and the other for each token.
    in_groups([](std::string_view path) { return path; }, &kind_of, /*exact=*/false);
    // Modules below the same one: projections.
    const auto above = [](std::string_view path) { return path.substr(0, path.rfind('.') + 1); };
    in_groups(above, &kind_of, /*exact=*/true);
    join();
    in_groups(above, &kind_of, /*exact=*/true);
    by_value();
    for (std::size_t i = 0; i < second_.calls.size(); ++i) {
      ComparedCall* found = pairing_.compared(static_cast<std::int64_t>(i));
      if (found == nullptr || found->match == kNoCall) continue;
      if (pairing_.terms().tolerance > 0 && found->partner == Partner::Call &&
          has_other_sizes(*found, second_.calls[i])) {
        pairing_.release(*found);
        continue;
      }
      if (found->partner != Partner::Call || found->difference == Difference::PassedOn)
        pairing_.classify(*found, second_.calls[i]);
    }
  }

 private:
  void find_open() {
    const Recording& first = *pairing_.first();
    std::vector<bool> open_first(first.calls.size()), open_second(second_.calls.size());
    std::vector<bool> round_first(first.calls.size()), round_second(second_.calls.size());
    std::vector<bool> other_sizes(first.calls.size());
    for (std::size_t i = 0; i < second_.calls.size(); ++i) {
      const ComparedCall* found = pairing_.compared(static_cast<std::int64_t>(i));
      if (found == nullptr || found->match == kNoCall) continue;
      if (has_other_sizes(*found, second_.calls[i]))
        other_sizes[static_cast<std::size_t>(found->match)] = open_second[i] = true;
      mark_round(round_second, second_.calls, second_.calls[i].outer);
    }
    for (std::size_t i = 0; i < first.calls.size(); ++i) {
      if (pairing_.has_partner(static_cast<std::int64_t>(i)))
        mark_round(round_first, first.calls, first.calls[i].outer);
    }
    const auto inside = [](const std::vector<bool>& open, std::int64_t outer) {
      return outer != kNoCall && open[static_cast<std::size_t>(outer)];
    };
    for (std::size_t i = 0; i < first.calls.size(); ++i) {
      const RecordedCall& call = first.calls[i];
      const auto number = static_cast<std::int64_t>(i);
      if (call.inner.empty() || call.results.empty() || round_first[i]) continue;
      if (pairing_.is_taken(number) && !other_sizes[i]) continue;
      open_first[i] = true;
      if (!inside(open_first, call.outer))
        first_.push_back({{number}, &call, pairing_.module_of_first(call)});
    }
    for (std::size_t i = 0; i < second_.calls.size(); ++i) {
      const RecordedCall& call = second_.calls[i];
      const ComparedCall* found = pairing_.compared(static_cast<std::int64_t>(i));
      if (found == nullptr || call.results.empty() || round_second[i]) continue;
      if (found->match != kNoCall && !open_second[i]) continue;
      open_second[i] = true;
      if (!inside(open_second, call.outer))
        second_open_.push_back(
            {{static_cast<std::int64_t>(i)}, &call, second_.sites[call.site].module});
    }
  }

  bool has_other_sizes(const ComparedCall& found, const RecordedCall& call) const {
    const RecordedCall& there = pairing_.first()->calls[static_cast<std::size_t>(found.match)];
    return !call.results.empty() && !there.results.empty() &&
           call.results[0].sizes != there.results[0].sizes;
  }

  static void mark_round(std::vector<bool>& round, const std::vector<RecordedCall>& calls,
                         std::int64_t outer) {
    for (; outer != kNoCall; outer = calls[static_cast<std::size_t>(outer)].outer)
      round[static_cast<std::size_t>(outer)] = true;
  }

  template <typename Place, typename Kind>
  Groups grouped(Place place, Kind kind) {
    Groups groups;
    const auto key = [&](const Open& open) {
      return std::string(place(open.path())) + '\n' + std::string(kind(*open.call)) +
             (open.call->backward ? "\nb" : "\nf");
    };
    for (Open& open : first_) {
      if (open.is_open && !open.module.empty()) groups[key(open)].first.push_back(&open);
    }
    for (Open& open : second_open_) {
      if (open.is_open && !open.module.empty()) groups[key(open)].second.push_back(&open);
    }
    return groups;
  }

  template <typename Place, typename Kind>
  void in_groups(Place place, Kind kind, bool exact) {
    for (auto& [key, group] : grouped(place, kind)) {
      divide(group.first, group.second, exact, /*whole_is_first=*/true);
      divide(group.second, group.first, exact, /*whole_is_first=*/false);
    }
  }

  // Each whole gets the parts that are nearest to it.
  void divide(const std::vector<Open*>& wholes, const std::vector<Open*>& parts, bool exact,
              bool whole_is_first) {
    for (std::size_t w = 0; w < wholes.size(); ++w) {
      if (!wholes[w]->is_open) continue;
      Division best;
      double nearest = std::numeric_limits<double>::infinity();
      const auto offer = [&](const std::vector<Open*>& own) {
        if (own.empty()) return;
        for (const std::int64_t groups : exact ? groups_of(*wholes[w], own) : kOneGroup) {
          const double distance = known(together(*wholes[w], {own, groups}, whole_is_first));
          if (best.parts.empty() || distance < nearest) best = {own, groups};
          if (distance < nearest) nearest = distance;
          if (nearest <= kAlike) return;
        }
      };
      std::vector<Open*> own;
      for (std::size_t begin = 0; begin < parts.size() && own.empty(); ++begin)
        own = parts_of(*wholes[w], parts, begin, 1, exact);
      offer(own);
      // Each forward pass calls all of them.
      if (!exact && wholes.size() > 1) offer(parts_of(*wholes[w], parts, w, wholes.size(), exact));
      if (wholes[w]->call->backward) {
        std::reverse(own.begin(), own.end());
        offer(own);
      }
      if (!best.parts.empty()) give(*wholes[w], best, whole_is_first);
    }
  }

  static inline const std::vector<std::int64_t> kOneGroup{1};

  static std::vector<Open*> parts_of(const Open& whole, const std::vector<Open*>& parts,
                                     std::size_t begin, std::size_t apart, bool exact) {
    std::vector<Open*> own;
    std::int64_t inner = 0, places = 0, all = 0;
    for (std::size_t i = begin; i < parts.size(); i += apart) {
      if (!parts[i]->is_open || parts[i] == &whole) continue;
      const auto slice = slice_of(whole.call->results[0], parts[i]->call->results[0]);
      if (!slice || (!own.empty() && slice->inner != inner)) {
        if (own.empty()) return {};
        continue;
      }
      if (places + slice->length > slice->of) break;
      inner = slice->inner;
      places += slice->length;
      all = slice->of;
      own.push_back(parts[i]);
    }
    const bool fits = own.size() > 1 && (!exact || places == all);
    return fits ? own : std::vector<Open*>();
  }

  // In how many groups the whole may have its parts.
  static std::vector<std::int64_t> groups_of(const Open& whole, const std::vector<Open*>& parts) {
    std::int64_t most = 0;
    for (const Open* part : parts)
      most = std::gcd(most, slice_of(whole.call->results[0], part->call->results[0])->length);
    std::vector<std::int64_t> found;
    for (std::int64_t groups = 1; groups <= std::min(most, kMostGroups); ++groups) {
      if (most % groups == 0) found.push_back(groups);
    }
    return found;
  }

  // Of each part.
  static std::vector<Distance> apart(const Open& whole, const Division& division,
                                     bool whole_is_first) {
    const Digest& all = whole.call->results[0];
    std::vector<Distance> found;
    std::int64_t offset = 0;
    for (const Open* part : division.parts) {
      const Digest& own = part->call->results[0];
      Slice slice = *slice_of(all, own);
      slice.groups = division.groups;
      add_slice(found.emplace_back(), all, own, slice, offset, whole_is_first);
      offset += slice.length;
    }
    return found;
  }

  static Distance together(const Open& whole, const Division& division, bool whole_is_first) {
    Distance all;
    const std::vector<Distance> distances = apart(whole, division, whole_is_first);
    for (std::size_t i = 0; i < distances.size(); ++i) {
      if (distances[i].pairs() == 0) continue;
      const auto numbers = static_cast<double>(numel_of(division.parts[i]->call->results[0]));
      all.add(distances[i], numbers / static_cast<double>(distances[i].pairs()));
    }
    return all;
  }

  // How far they are apart at least: norms are of all numbers. NaN where a run has no sample.
  static double by_norms(const Open& whole, const Division& division) {
    const Digest& all = whole.call->results[0];
    bool sampled = !all.sample.empty();
    double squares = 0;
    for (const Open* part : division.parts) {
      const Digest& own = part->call->results[0];
      sampled = sampled && !own.sample.empty();
      squares += own.norm * own.norm;
    }
    const double found = std::abs(all.norm - std::sqrt(squares)) / all.norm;
    return sampled && std::isfinite(found) ? found : NAN;
  }

  void give(Open& whole, const Division& division, bool whole_is_first) {
    whole.is_open = false;
    const std::vector<Distance> distances = apart(whole, division, whole_is_first);
    // The samples of a part and of the whole may have no number in common.
    const double norms = by_norms(whole, division);
    bool all_seen = true;
    std::vector<std::int64_t> all;
    for (std::size_t i = 0; i < distances.size(); ++i) {
      Open& part = *division.parts[i];
      const bool seen = distances[i].pairs() > 0;
      part.is_open = false;
      all_seen = all_seen && seen;
      all.insert(all.end(), part.numbers.begin(), part.numbers.end());
      if (whole_is_first)
        set(part, Partner::Whole, whole.numbers, seen ? of_part(whole, distances[i]) : norms);
    }
    if (whole_is_first) return;
    const double total = known(together(whole, division, whole_is_first));
    set(whole, Partner::Parts, all, all_seen ? total : std::fmax(total, norms));
  }

  void set(const Open& own, Partner partner, const std::vector<std::int64_t>& matches,
           double total) {
    for (const std::int64_t match : matches) pairing_.take(match);
    for (const std::int64_t number : own.numbers) {
      ComparedCall& compared = *pairing_.compared(number);
      compared = {.partner = partner,
                  .match = matches[0],
                  .more = {matches.begin() + 1, matches.end()},
                  .total = total,
                  .rerun = compared.rerun};
    }
  }

  // The calls of a module for one token each as a call for all of them: their projections may be
  // fused in the other run.
  void join() {
    for (std::vector<Open>* opens : {&first_, &second_open_}) {
      std::map<std::string, std::vector<const Open*>> by_module;
      for (const Open& open : *opens) {
        if (open.is_open && !open.module.empty())
          by_module[std::string(open.path()) + '\n' + open.call->inner +
                    (open.call->backward ? "\nb" : "\nf")]
              .push_back(&open);
      }
      std::vector<Open> whole;
      for (const auto& [key, own] : by_module) {
        if (own.size() < 2) continue;
        std::vector<const Digest*> digests;
        for (const Open* each : own) digests.push_back(&each->call->results[0]);
        std::optional<Digest> digest = joined(digests);
        if (!digest) continue;
        RecordedCall& call = joined_.emplace_back(*own[0]->call);
        call.results = {*std::move(digest)};
        Open& open = whole.emplace_back(Open{{}, &call, own[0]->module});
        for (const Open* each : own) open.numbers.push_back(each->numbers[0]);
      }
      opens->insert(opens->end(), whole.begin(), whole.end());
    }
  }

  // The last op of several, or the only one, that make the same in another way.
  void by_value() {
    const auto all = [](const RecordedCall&) { return std::string_view(); };
    for (auto& [key, group] : grouped([](std::string_view path) { return path; }, all)) {
      for (Open* own : group.second) {
        if (own->call->moves || own->numbers.size() > 1 ||
            pairing_.compared(own->numbers[0])->match != kNoCall)
          continue;
        Open* best = nullptr;
        double nearest = kAlike;
        std::size_t seen = 0;
        for (Open* other : group.first) {
          if (!other->is_open || other->call->moves || other->numbers.size() > 1 ||
              pairing_.is_taken(other->numbers[0]))
            continue;
          if (++seen > kMostCandidates) break;
          const Digest &a = other->call->results[0], &b = own->call->results[0];
          if (a.sample.empty() || a.norm == 0) continue;
          const double distance = evidence::distance({a}, {b});
          if (!(distance < nearest)) continue;
          nearest = distance;
          best = other;
        }
        if (best == nullptr) continue;
        best->is_open = own->is_open = false;
        set(*own, Partner::Value, best->numbers, nearest);
      }
    }
  }

  Pairing& pairing_;
  const Recording& second_;
  std::vector<Open> first_, second_open_;
  std::deque<RecordedCall> joined_;
};

}  // namespace

void pair_parts(Pairing& pairing, const Recording& second) { Parts(pairing, second).run(); }

}  // namespace habana_mp::probe
