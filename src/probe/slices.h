// Samples of results that are parts of another one: of some places in one dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "evidence/digest.h"

namespace habana_mp::probe {

// The part is places [offset, offset + length) of the whole in one dimension. In several groups, it
// is such places of each group: of a fused projection whose rows are ordered by head.
struct Slice {
  std::int64_t inner = 1;  // numbers of one place in that dimension
  std::int64_t of = 0;     // places of the whole
  std::int64_t length = 0;
  std::int64_t groups = 1;  // both are divided into so many
};

// Nothing of what is no part, or has other numbers than floating ones: places and masks are of a
// length, not of a part of a sequence.
std::optional<Slice> slice_of(const evidence::Digest& whole, const evidence::Digest& part);

// The numbers that both samples have, of a part that begins at the offset: `groups` divides it.
void add_slice(evidence::Distance& distance, const evidence::Digest& whole,
               const evidence::Digest& part, const Slice& slice, std::int64_t offset,
               bool whole_is_first);

// Results one behind the other, along the dimension before the last one; nothing where sizes or
// samples do not fit.
std::optional<evidence::Digest> joined(const std::vector<const evidence::Digest*>& results);

}  // namespace habana_mp::probe
