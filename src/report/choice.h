// What an op chooses by its numbers, such as experts: by how little, and how many choices were made
// otherwise to see what they are worth. It must not know torch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

namespace habana_mp::report {

inline constexpr std::uint32_t kOutputs = UINT32_MAX;  // in place of the line of a loss

struct Choice {
  // How many choices have a margin between 2^(bin / 4) and 2^((bin + 1) / 4): the difference of the
  // last number that is chosen and the next one, of probabilities by the size of that number.
  std::map<int, std::uint64_t> margins{};
  std::uint64_t choices = 0;    // that were followed to a loss or to outputs
  std::uint64_t seen = 0;       // all
  std::uint64_t measured = 0;   // whose margins a backward pass has begun at, of all passes
  std::uint64_t otherwise = 0;  // that were made otherwise

  static constexpr int kBins = 160;  // on each side of 1; the first one has the zeros

  static int bin_of(float margin) {
    if (!(margin > 0)) return -kBins;
    const double bin = std::floor(4 * std::log2(static_cast<double>(margin)));
    return static_cast<int>(std::clamp<double>(bin, -kBins, kBins));
  }

  void add(const Choice& other) {
    for (const auto& [bin, count] : other.margins) margins[bin] += count;
    choices += other.choices;
    seen += other.seen;
    measured += other.measured;
    otherwise += other.otherwise;
  }
};

// What a loss, or the outputs, differ by where so many choices are made otherwise: a sum of squares
// over steps.
struct ChoicesWorth {
  double squares = 0;
  std::uint64_t otherwise = 0;
};

}  // namespace habana_mp::report
