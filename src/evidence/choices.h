// What ops choose by the numbers that they are given: classes, places, masks. A choice flips where
// other numbers, often hardly others, lead to another one.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace habana_mp::evidence {

inline constexpr std::size_t kMostChosen = 1 << 16;  // numbers that are kept of a call

struct Choices {
  std::vector<std::int64_t> numbers{};
  std::int64_t width = 1;  // numbers of a choice: those that topk takes are one, in any order
};

// Of a call of an op by the dispatcher's name: its results in whole numbers or truth values, where
// it was given floating ones. Empty of others.
Choices choices_of(std::string_view op, c10::ArrayRef<c10::IValue> arguments,
                   c10::ArrayRef<c10::IValue> results);

struct Flips {
  std::uint64_t flipped = 0;
  std::uint64_t choices = 0;  // 0 where the two have not the same number of them
};
Flips flips_of(const Choices& a, const Choices& b);

}  // namespace habana_mp::evidence
