#include "probe/slices.h"

#include <algorithm>
#include <cmath>

namespace habana_mp::probe {

using evidence::Digest;
using evidence::Distance;

constexpr std::int64_t kMostPlaces = 1 << 20;  // sizes may be those of a file, and of any size

std::optional<Slice> slice_of(const Digest& whole, const Digest& part) {
  const std::vector<std::int64_t>&all = whole.sizes, &own = part.sizes;
  if (all.empty() || own.empty() || numel_of(part) == 0) return std::nullopt;
  if (!c10::isFloatingType(whole.dtype) || !c10::isFloatingType(part.dtype)) return std::nullopt;
  if (all.size() != own.size()) {  // rows in one dimension or in several
    const bool same_rows =
        numel_of(whole) / std::max<std::int64_t>(1, all.back()) == numel_of(part) / own.back();
    if (!same_rows || own.back() >= all.back()) return std::nullopt;
    return Slice{1, all.back(), own.back()};
  }
  const auto [differs, other] = std::mismatch(all.begin(), all.end(), own.begin());
  if (differs == all.end() || *other >= *differs) return std::nullopt;
  if (!std::equal(differs + 1, all.end(), other + 1)) return std::nullopt;
  Slice slice{1, *differs, *other};
  for (auto size = differs + 1; size != all.end(); ++size) slice.inner *= *size;
  return slice;
}

void add_slice(Distance& distance, const Digest& whole, const Digest& part, const Slice& slice,
               std::int64_t offset, bool whole_is_first) {
  // A group of the part lies in a group of the whole.
  const std::int64_t own = slice.length / slice.groups * slice.inner;
  const std::int64_t all = slice.of / slice.groups * slice.inner;
  const std::int64_t begin = offset / slice.groups * slice.inner;
  for (std::size_t i = 0; i < part.sample.size(); ++i) {
    const std::int64_t place = static_cast<std::int64_t>(i) * part.step;
    const std::int64_t there = place / own * all + begin + place % own;
    const auto sampled = static_cast<std::size_t>(there / whole.step);
    if (there % whole.step != 0 || sampled >= whole.sample.size()) continue;
    const double a = whole.sample[sampled], b = part.sample[i];
    distance.add(whole_is_first ? a : b, whole_is_first ? b : a);
  }
}

std::optional<Digest> joined(const std::vector<const Digest*>& results) {
  Digest all = *results[0];
  const std::size_t rank = all.sizes.size();
  if (rank < 2 || !c10::isFloatingType(all.dtype)) return std::nullopt;
  const std::int64_t width = all.sizes[rank - 1];
  std::vector<const Digest*> parts;  // by the place in the sequence
  std::vector<std::int64_t> begins;
  double squares = 0;
  for (const Digest* each : results) {
    const Digest& own = *each;
    std::vector<std::int64_t> sizes = own.sizes;
    if (sizes.size() != rank) return std::nullopt;
    sizes[rank - 2] = all.sizes[rank - 2];
    if (sizes != all.sizes || own.sample.empty()) return std::nullopt;
    const auto begin = static_cast<std::int64_t>(parts.size());
    if (begin + own.sizes[rank - 2] > kMostPlaces) return std::nullopt;
    for (std::int64_t i = 0; i < own.sizes[rank - 2]; ++i) {
      parts.push_back(&own);
      begins.push_back(begin);
    }
    squares += own.norm * own.norm;
    all.step = std::max(all.step, own.step);
  }
  const auto length = static_cast<std::int64_t>(parts.size());
  all.sizes[rank - 2] = length;
  all.norm = std::sqrt(squares);
  all.sample.clear();
  for (std::int64_t place = 0; place < numel_of(all); place += all.step) {
    const auto token = static_cast<std::size_t>(place / width % length);
    const Digest& own = *parts[token];
    const std::int64_t there = (place / (width * length) * own.sizes[rank - 2] +
                                static_cast<std::int64_t>(token) - begins[token]) *
                                   width +
                               place % width;
    const auto sampled = static_cast<std::size_t>(there / own.step);
    if (there % own.step != 0 || sampled >= own.sample.size()) return std::nullopt;
    all.sample.push_back(own.sample[sampled]);
  }
  return all;
}

}  // namespace habana_mp::probe
