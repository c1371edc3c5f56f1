// From lanes to a linear layer: walks the panels of a weight with the registers of an instruction
// set.
//
// `Lanes` says what Lanes::kWidth outputs are in registers: Sum, their sums in float32; Weights,
// their pairs of weights; Pair, one pair of x for all of them. It has what is called below. A walk
// over k holds the sums of up to Lanes::kRows rows by Lanes::kSums registers.
//
// As in blocks.h all here is local to the file that includes it, which is compiled for a CPU of its
// own.
#pragma once

#include <cstring>
#include <utility>

#include "kernels/linear/fetch.h"
#include "kernels/linear/linear.h"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t kPanel = PackedWeight::kPanel;
constexpr std::size_t kLine = 64 / sizeof(std::uint16_t);  // elements
// Rows that take turns over a panel; those beyond them read it again.
constexpr std::size_t kMostRows = 32;
// The k of a turn. Weights of so many, and the next ones, stay in the L1 cache while all rows have
// theirs: 16 KB of a panel.
constexpr std::size_t kChunk = 128;
// How far ahead a single row block fetches, in elements. The prefetcher of the CPU stops at the end
// of a page; further ahead than this is faster from memory, but slower from the L2 cache.
constexpr std::size_t kAhead = 4096;

// Loops that have to be unrolled, or sums would not stay in registers. No optimizer is asked.
template <std::size_t kCount, class Act>
[[gnu::always_inline]] inline void times(const Act& act) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>)
      __attribute__((always_inline)) { (act(kIndex), ...); }(std::make_index_sequence<kCount>());
}

std::uint32_t pair_at(const std::uint16_t* x) {
  std::uint32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return pair;
}

// Some k for a block of rows and columns. The sums of a row lie kPanel apart from those of the
// next.
struct Walk {
  const std::uint16_t* x;
  std::ptrdiff_t x_row_stride;
  const std::uint16_t* weight;
  std::size_t pairs;
  bool odd;                    // one more k follows
  const std::uint16_t* ahead;  // fetched on the way for later walks; may lie beyond the weight
  const float* from;           // null: the sums begin at zero
  const float* plus;           // added to the sums at the end; may be null
  float* to;
};

// kWalks: those that go over a chunk
template <class Lanes, std::size_t kRows, std::size_t kWalks>
void add_products(const Walk& walk) {
  constexpr std::size_t kSums = Lanes::kSums;
  typename Lanes::Sum sum[kRows][kSums];
  const auto each_sum = [&](const auto& act) __attribute__((always_inline)) {
    times<kRows>([&](std::size_t i) __attribute__((always_inline)) {
      times<kSums>([&](std::size_t j) __attribute__((always_inline)) {
        act(sum[i][j], i * kPanel + j * Lanes::kWidth);
      });
    });
  };
  const float *const from = walk.from, *const plus = walk.plus;
  if (from == nullptr) {
    each_sum([](auto& one, std::size_t) __attribute__((always_inline)) { one = Lanes::zero(); });
  } else {
    each_sum([&](auto& one, std::size_t at)
                 __attribute__((always_inline)) { one = Lanes::load(from + at); });
  }
  const std::uint16_t *x = walk.x, *weight = walk.weight, *ahead = walk.ahead;
  const std::ptrdiff_t x_row_stride = walk.x_row_stride;
  const auto step = [&](const auto& pair_of) __attribute__((always_inline)) {
    typename Lanes::Weights weights[kSums];
    times<kSums>([&](std::size_t j) __attribute__((always_inline)) {
      weights[j] = Lanes::weights(weight + j * 2 * Lanes::kWidth);
    });
    times<kRows>([&](std::size_t i) __attribute__((always_inline)) {
      const std::uint16_t* row = x + static_cast<std::ptrdiff_t>(i) * x_row_stride;
      const typename Lanes::Pair pair = Lanes::pair(pair_of(row));
      times<kSums>([&](std::size_t j) __attribute__((always_inline)) {
        sum[i][j] = Lanes::add(sum[i][j], weights[j], pair);
      });
    });
  };
  for (std::size_t left = walk.pairs; left != 0; --left) {
    times<lines_to_fetch(kWalks)>(
        [&](std::size_t i) __attribute__((always_inline)) { fetch<kWalks>(ahead + i * kLine); });
    ahead += lines_to_fetch(kWalks) * kLine;
    step(pair_at);
    x += 2;
    weight += 2 * kPanel;
  }
  if (walk.odd) step([](const std::uint16_t* last) { return std::uint32_t{*last}; });
  if (plus != nullptr) {
    each_sum([&](auto& one, std::size_t at) __attribute__((always_inline)) {
      one = Lanes::plus(one, Lanes::load(plus + at));
    });
  }
  float* const to = walk.to;
  each_sum([&](const auto& one, std::size_t at)
               __attribute__((always_inline)) { Lanes::store(to + at, one); });
}

// By the rows of a block, less one. All walks over a chunk together fetch the next chunk.
template <class Lanes>
struct Walks {
  using AddProducts = void (*)(const Walk& walk);
  AddProducts single[Lanes::kRows], of_two_or_three[Lanes::kRows], of_more[Lanes::kRows];
};

template <class Lanes, std::size_t... kBefore>
constexpr Walks<Lanes> walks_of(std::index_sequence<kBefore...>) {
  return {{add_products<Lanes, kBefore + 1, 1>...},
          {add_products<Lanes, kBefore + 1, 2>...},
          {add_products<Lanes, kBefore + 1, 4>...}};
}

template <class Lanes>
void finish_row(const float* sums, const std::uint16_t* bias, std::uint16_t* out) {
  for (std::size_t i = 0; i < kPanel; i += Lanes::kWidth) {
    typename Lanes::Sum sum = Lanes::load(sums + i);
    if (bias != nullptr) sum = Lanes::plus(sum, Lanes::widen(bias + i));
    Lanes::round(sum, out + i);
  }
}

template <class Lanes>
void finish_panel(const LinearTask& task, std::size_t panel, const float* sums,
                  std::size_t first_row, std::size_t rows) {
  const std::size_t column = panel * kPanel, left = task.weight.outputs - column;
  const std::uint16_t* bias = task.bias == nullptr ? nullptr : task.bias + column;
  std::uint16_t whole_bias[kPanel] = {}, whole_out[kPanel];
  if (left < kPanel && bias != nullptr) {
    std::memcpy(whole_bias, bias, left * sizeof *bias);
    bias = whole_bias;
  }
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint16_t* out =
        task.out + static_cast<std::ptrdiff_t>(first_row + row) * task.out_row_stride + column;
    finish_row<Lanes>(sums + row * kPanel, bias, left < kPanel ? whole_out : out);
    if (left < kPanel) std::memcpy(out, whole_out, left * sizeof *out);
  }
}

// In chunks of k, for which blocks of rows and groups of columns take turns. Where one walk takes
// all of them it goes through a whole sum.
template <class Lanes>
void add_panel(const LinearTask& task, std::size_t panel, std::size_t first_row, std::size_t rows) {
  static constexpr auto kWalks = walks_of<Lanes>(std::make_index_sequence<Lanes::kRows>());
  constexpr std::size_t kGroup = Lanes::kSums * Lanes::kWidth, kGroups = kPanel / kGroup;
  alignas(64) float sums[kMostRows * kPanel], totals[kMostRows * kPanel];
  const std::size_t inputs = task.weight.inputs;
  const std::uint16_t* weight = task.weight.data + panel * task.weight.panel_size();
  const std::uint16_t* x = task.x + static_cast<std::ptrdiff_t>(first_row) * task.x_row_stride;
  const std::size_t blocks = (rows + Lanes::kRows - 1) / Lanes::kRows, walks = blocks * kGroups;
  const auto& add_block = walks == 1  ? kWalks.single
                          : walks < 4 ? kWalks.of_two_or_three
                                      : kWalks.of_more;
  std::size_t k = 0, sum_start = 0;
  do {
    const std::size_t sum_end = inputs - sum_start < task.sum ? inputs : sum_start + task.sum;
    const std::size_t end = walks == 1 || sum_end - k < kChunk ? sum_end : k + kChunk;
    const std::uint16_t *from = weight + k * kPanel, *next = weight + end * kPanel;
    const std::uint16_t* ahead = walks == 1 ? from + kAhead : next;
    const bool last = end == sum_end;
    for (std::size_t group = 0; group < kGroups; ++group) {
      for (std::size_t block = 0, row = 0; block < blocks; ++block) {
        const std::size_t end_row = (block + 1) * rows / blocks;
        const std::size_t at = row * kPanel + group * kGroup;
        add_block[end_row - row - 1](
            {.x = x + static_cast<std::ptrdiff_t>(row) * task.x_row_stride + k,
             .x_row_stride = task.x_row_stride,
             .weight = from + group * 2 * kGroup,
             .pairs = (end - k) / 2,
             .odd = (end - k) % 2 != 0,
             .ahead = ahead,
             .from = k == sum_start ? nullptr : sums + at,
             .plus = last && sum_start != 0 ? totals + at : nullptr,
             .to = (last ? totals : sums) + at});
        ahead += (end - k) * kPanel / walks;
        row = end_row;
      }
    }
    k = end;
    if (last) sum_start = k;
  } while (k < inputs);
  finish_panel<Lanes>(task, panel, totals, first_row, rows);
}

template <class Lanes>
void add_panels(const LinearTask& task) {
  for (std::size_t panel = task.first_panel; panel < task.last_panel; ++panel) {
    for (std::size_t row = 0; row < task.rows; row += kMostRows) {
      const std::size_t left = task.rows - row;
      add_panel<Lanes>(task, panel, row, left < kMostRows ? left : kMostRows);
    }
  }
}

// Order::Turns. The sums lie kPanel apart from those of the next turn: in memory, as there are too
// many for the registers, so that the weight is read as it lies.
constexpr std::size_t kTurns = 16;

template <class Lanes>
void add_turns(float* sums) {
  const auto add = [&](std::size_t to, std::size_t from) {
    for (std::size_t i = 0; i < kPanel; i += Lanes::kWidth) {
      float* const at = sums + to * kPanel + i;
      Lanes::store(at, Lanes::plus(Lanes::load(at), Lanes::load(sums + from * kPanel + i)));
    }
  };
  for (std::size_t turn = 0; turn < 8; ++turn) add(turn, turn + 8);
  for (std::size_t turn = 0; turn < 4; ++turn) add(turn, turn + 4);
  add(0, 1);
  add(2, 3);
  add(0, 2);
}

template <class Lanes>
void add_panel_in_turns(const LinearTask& task, std::size_t panel, std::size_t row) {
  alignas(64) float sums[kTurns * kPanel] = {};
  const std::uint16_t* weight = task.weight.data + panel * task.weight.panel_size();
  const std::uint16_t* x = task.x + static_cast<std::ptrdiff_t>(row) * task.x_row_stride;
  const std::size_t pairs = task.weight.inputs / 2;
  const auto add = [&](std::size_t pair, std::uint32_t of_x) {
    const typename Lanes::Pair both = Lanes::pair(of_x);
    const std::uint16_t* const weights = weight + pair * 2 * kPanel;
    times<lines_to_fetch(1)>([&](std::size_t i) __attribute__((always_inline)) {
      fetch<1>(weights + kAhead + i * kLine);
    });
    float* const turn = sums + pair % kTurns * kPanel;
    for (std::size_t i = 0; i < kPanel; i += Lanes::kWidth) {
      Lanes::store(turn + i,
                   Lanes::add(Lanes::load(turn + i), Lanes::weights(weights + 2 * i), both));
    }
  };
  for (std::size_t pair = 0; pair < pairs; ++pair) add(pair, pair_at(x + 2 * pair));
  if (task.weight.inputs % 2 != 0) add(pairs, std::uint32_t{x[2 * pairs]});
  add_turns<Lanes>(sums);
  finish_panel<Lanes>(task, panel, sums, row, 1);
}

// `InOrder` are lanes that add the products of a pair in the order of k.
template <class Lanes, class InOrder>
void linear_with(const LinearTask& task) {
  if (task.order == Order::Pairs) return add_panels<Lanes>(task);
  if (task.order == Order::InOrder) {
    LinearTask one_sum = task;
    one_sum.sum = (task.weight.inputs | 1) + 1;
    return add_panels<InOrder>(one_sum);
  }
  for (std::size_t panel = task.first_panel; panel < task.last_panel; ++panel) {
    for (std::size_t row = 0; row < task.rows; ++row) add_panel_in_turns<Lanes>(task, panel, row);
  }
}

}  // namespace
}  // namespace habana_mp::kernels
