// From lanes to the products of an instruction set: walks the panels of a weight by the products of
// int8_products.h.
//
// Where IntLanes::kHasExcess, all sums of a row of x are too large by IntLanes::excess() of that
// row.
//
// As in blocks.h all here is local to the file that includes it, which is compiled for a CPU of its
// own, and without contraction: each step rounds on its own.
#pragma once

#include <bit>
#include <cstring>
#include <utility>

#include "kernels/blocks.h"
#include "kernels/int8/int8_products.h"
#include "kernels/linear/fetch.h"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t kLine = 64;
// Rows that take turns over a panel; those beyond them read it again.
constexpr std::size_t kMostRows = 32;
// How far ahead a single walk fetches, in bytes: see linear_blocks.h.
constexpr std::size_t kAhead = 8192;
// The products of so many inputs fit in an int32, also with an operand of 255.
constexpr std::size_t kIntSum = 65536;

// Some inputs for a block of rows and all outputs of a panel. The sums of a row lie kPanel apart
// from those of the next.
template <class Product>
struct Walk {
  const typename Product::X* const* x;  // of each row
  std::ptrdiff_t first;                 // where the inputs begin in it
  const typename Product::Weight* weight;
  std::size_t steps;
  std::size_t left;          // so many more inputs than the steps have
  const std::int8_t* ahead;  // fetched on the way for later walks; may lie beyond the weight
  std::size_t ahead_step;    // bytes that a group of outputs fetches
  typename Product::Element* sums;
  bool begins;  // the sums are zero
};

// kWalks: those that go over a chunk
template <class Product, std::size_t kRows, std::size_t kWalks>
void add_products(const Walk<Product>& walk) {
  using Lanes = typename Product::Lanes;
  constexpr std::size_t kSums = Product::sums(kRows), kGroup = kSums * Lanes::kWidth;
  constexpr std::size_t kFetch = lines_to_fetch(kWalks);
  static_assert(kPanel % kGroup == 0);
  const typename Product::X* rows[kRows];
  times<kRows>([&](auto i) __attribute__((always_inline)) { rows[i] = walk.x[i] + walk.first; });
  // The inputs left, filled up with zeros. Copied before there are sums, as a call would take them
  // out of their registers.
  typename Product::X rest[kRows * kInputs] = {};
  if (!Product::kFilled && walk.left != 0) {
    for (std::size_t i = 0; i < kRows; ++i)
      std::memcpy(rest + i * kInputs, rows[i] + walk.steps * kInputs, walk.left * sizeof *rest);
  }
  for (std::size_t group = 0; group < kPanel; group += kGroup) {
    typename Lanes::Sum sum[kRows][kSums];
    typename Product::Element* const sums = walk.sums + group;
    const auto each_sum = [&](const auto& act) __attribute__((always_inline)) {
      times<kRows>([&](auto i) __attribute__((always_inline)) {
        times<kSums>([&](auto j) __attribute__((always_inline)) {
          act(sum[i][j], sums + i * kPanel + j * Lanes::kWidth);
        });
      });
    };
    if (walk.begins) {
      each_sum([](auto& one, auto*) __attribute__((always_inline)) { one = Lanes::zero(); });
    } else {
      each_sum([](auto& one, auto* at) __attribute__((always_inline)) { one = Lanes::load(at); });
    }
    const typename Product::X* x[kRows];
    times<kRows>([&](auto i) __attribute__((always_inline)) { x[i] = rows[i]; });
    std::size_t k = 0;
    const typename Product::Weight* weight = Product::at(walk.weight, group);
    const std::int8_t* ahead = walk.ahead + group / kGroup * walk.ahead_step;
    for (std::size_t steps = walk.steps, left = walk.left;; steps = 1, left = 0) {
      for (; steps != 0; --steps) {
        times<kFetch>([&](auto i)
                          __attribute__((always_inline)) { fetch<kWalks>(ahead + i * kLine); });
        ahead += kFetch * kLine;
        Product::step(sum, weight, x, k);
        k += kInputs;
        weight += kStep;
      }
      if (Product::kFilled || left == 0) break;
      times<kRows>([&](auto i) __attribute__((always_inline)) { x[i] = rest + i * kInputs; });
      k = 0;
    }
    each_sum([](const auto& one, auto* at)
                 __attribute__((always_inline)) { Lanes::store(at, one); });
  }
}

// All walks over a chunk together fetch the next chunk.
template <class Product>
constexpr std::size_t walks_over_chunk(std::size_t rows, std::size_t blocks) {
  return blocks * kPanel / (Product::sums(rows) * Product::Lanes::kWidth);
}

// By the rows of a block, less one.
template <class Product>
struct Walks {
  using AddProducts = void (*)(const Walk<Product>& walk);
  AddProducts of_one_block[Product::kRows], of_two_or_three[Product::kRows],
      of_more[Product::kRows];
};

template <class Product, std::size_t... kBefore>
constexpr Walks<Product> walks_of(std::index_sequence<kBefore...>) {
  constexpr std::size_t kMost = Product::kMostBlocks;
  constexpr auto walks = walks_over_chunk<Product>;
  return {{add_products<Product, kBefore + 1, walks(kBefore + 1, 1)>...},
          {add_products<Product, kBefore + 1, walks(kBefore + 1, kMost < 2 ? kMost : 2)>...},
          {add_products<Product, kBefore + 1, walks(kBefore + 1, kMost < 4 ? kMost : 4)>...}};
}

// The products of the inputs from begin to before end of some rows and a panel, in chunks for which
// the blocks of rows take turns. Rows have the input k at k + shift. `begins`: the sums are zero.
template <class Product>
void add_inputs(const typename Product::X* const* x, std::ptrdiff_t shift, std::size_t rows,
                const std::int8_t* panel, std::size_t begin, std::size_t end, bool begins,
                typename Product::Element* sums) {
  static constexpr auto kWalks = walks_of<Product>(std::make_index_sequence<Product::kRows>());
  const std::size_t blocks = (rows + Product::kRows - 1) / Product::kRows;
  const bool single = !Product::kConverts && walks_over_chunk<Product>(rows, blocks) == 1;
  alignas(64) typename Product::Weight converted[Product::kConverts ? Product::kChunk * kPanel : 1];
  for (std::size_t k = begin; k < end;) {
    const std::size_t next = single || end - k < Product::kChunk ? end : k + Product::kChunk;
    const std::size_t count = next - k;
    const std::int8_t* from = panel + k * kPanel;
    const std::int8_t* ahead = single ? from + kAhead : panel + next * kPanel;
    const typename Product::Weight* weight;
    if constexpr (Product::kConverts) {
      Product::convert(from, (count + kInputs - 1) / kInputs, converted);
      weight = converted;
    } else {
      weight = from;
    }
    for (std::size_t block = 0, row = 0; block < blocks; ++block) {
      const std::size_t end_row = (block + 1) * rows / blocks, block_rows = end_row - row;
      const auto& add_block = blocks == 1  ? kWalks.of_one_block
                              : blocks < 4 ? kWalks.of_two_or_three
                                           : kWalks.of_more;
      add_block[block_rows - 1](
          {.x = x + row,
           .first = static_cast<std::ptrdiff_t>(k) + shift,
           .weight = weight,
           .steps = count / kInputs,
           .left = count % kInputs,
           .ahead = ahead,
           .ahead_step = count * kPanel / walks_over_chunk<Product>(block_rows, blocks),
           .sums = sums + row * kPanel,
           .begins = begins && k == begin});
      ahead += count * kPanel / blocks;
      row = end_row;
    }
    k = next;
  }
}

// Where a row of the result has the outputs of a panel.
template <class Number>
std::byte* result_of(const Int8Task<Number>& task, std::size_t panel, std::size_t row) {
  const auto size = static_cast<std::ptrdiff_t>(row_of(task.to).bytes);
  return static_cast<std::byte*>(task.out) +
         (static_cast<std::ptrdiff_t>(row) * task.out_row_stride +
          static_cast<std::ptrdiff_t>(panel * kPanel)) *
             size;
}

// The lines that finish_rows() writes, which are on their way while the sums are added up.
template <class Number>
void fetch_results(const Int8Task<Number>& task, std::size_t panel, std::size_t first_row,
                   std::size_t rows) {
  const std::size_t size = row_of(task.to).bytes;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::byte* out = result_of(task, panel, first_row + row);
    for (std::size_t i = 0; i < kPanel * size; i += kLine) __builtin_prefetch(out + i, 1);
  }
}

// A row of sums by its scales, with a bias: in one loop that the compiler turns into vectors. From
// there act(the number, its place).
template <class Sum, class Act>
[[gnu::always_inline]] inline void finish_row(const Sum* __restrict sums, Sum too_much,
                                              float x_scale, const float* __restrict scales,
                                              const float* __restrict added, const Act& act) {
  for (std::size_t i = 0; i < kPanel; ++i)
    act(static_cast<float>(sums[i] - too_much) * x_scale * scales[i] + added[i], i);
}

// Scales, bias and the dtype of the result, for some rows and a panel. `excess`: what the sums of
// each row have too much; null: nothing.
template <class Number, class Sum>
void finish_rows(const Int8Task<Number>& task, Kernel cast, std::size_t panel,
                 std::size_t first_row, std::size_t rows, const Sum* sums,
                 const Sum* excess = nullptr) {
  const std::size_t column = panel * kPanel, left = task.weight.outputs - column;
  const std::size_t count = left < kPanel ? left : kPanel;
  const std::size_t size = row_of(task.to).bytes;
  const bool to_bfloat16s = task.to == DType::BFloat16;  // in place of a call for so few numbers
  alignas(kLine) float scales[kPanel], added[kPanel];
  std::memcpy(scales, task.weight.scales + column, sizeof scales);
  for (float& each : added) each = -0.0F;  // with which every sum stays as it is
  if (task.bias != nullptr) std::memcpy(added, task.bias + column, count * sizeof *added);
  const float* const x_scales = task.x_scales == nullptr ? nullptr : task.x_scales + first_row;
  const std::ptrdiff_t step = task.out_row_stride * static_cast<std::ptrdiff_t>(size);
  std::byte* __restrict out = result_of(task, panel, first_row);
  for (std::size_t row = 0; row < rows; ++row, out += step) {
    // By 1 nothing is rounded.
    const float x_scale = x_scales == nullptr ? 1 : x_scales[row];
    const Sum too_much = excess == nullptr ? 0 : excess[row];
    const Sum* own = sums + row * kPanel;
    if (to_bfloat16s) {
      alignas(kLine) std::uint16_t low[kPanel];
      finish_row(own, too_much, x_scale, scales, added,
                 [&](float y, std::size_t i) __attribute__((always_inline)) {
                   low[i] = to_bfloat16(std::bit_cast<std::uint32_t>(y));
                 });
      if (count == kPanel) {
        std::memcpy(out, low, sizeof low);
      } else {
        std::memcpy(out, low, count * sizeof *low);
      }
      continue;
    }
    alignas(kLine) float wide[kPanel];
    finish_row(own, too_much, x_scale, scales, added,
               [&](float y, std::size_t i) __attribute__((always_inline)) { wide[i] = y; });
    if (cast == nullptr) {
      std::memcpy(out, wide, count * sizeof *wide);
    } else {
      cast(wide, out, count);
    }
  }
}

// Where each of some rows of x begins.
template <class Number>
void find_rows(const Int8Task<Number>& task, std::size_t first_row, std::size_t rows,
               const Number** x) {
  for (std::size_t row = first_row; row < first_row + rows; ++row) {
    *x++ = task.x + (task.x_rows == nullptr ? static_cast<std::ptrdiff_t>(row) * task.x_row_stride
                                            : task.x_rows[row]);
  }
}

template <class Lanes, class Number>
void multiply_rows(const Int8Task<Number>& task, Kernel cast, std::size_t panel,
                   std::size_t first_row, std::size_t rows) {
  alignas(64) float sums[kMostRows * kPanel], totals[kMostRows * kPanel];
  fetch_results(task, panel, first_row, rows);
  std::memset(totals, 0, rows * kPanel * sizeof *totals);
  const std::size_t inputs = task.weight.inputs;
  const std::int8_t* weight = task.weight.data + panel * task.weight.panel_size();
  const Number* x[kMostRows];
  find_rows(task, first_row, rows, x);
  for (std::size_t begin = 0; begin < inputs; begin += kFloatSum) {
    const std::size_t end = inputs - begin < kFloatSum ? inputs : begin + kFloatSum;
    if (rows <= Lanes::kFusedRows) {
      add_inputs<Fused<Lanes>>(x, 0, rows, weight, begin, end, true, sums);
    } else {
      add_inputs<Converted<Lanes>>(x, 0, rows, weight, begin, end, true, sums);
    }
    for (std::size_t i = 0; i < rows * kPanel; ++i) totals[i] += sums[i];
  }
  finish_rows(task, cast, panel, first_row, rows, totals);
}

// Calls act(first row, rows) for shares of at most kMost rows, as equal as they can be: a few rows
// take almost as long as all of them.
template <std::size_t kMost, class Act>
void each_share(std::size_t first, std::size_t rows, const Act& act) {
  const std::size_t shares = (rows + kMost - 1) / kMost;
  for (std::size_t i = 0; i < shares; ++i) {
    const std::size_t begin = i * rows / shares;
    act(first + begin, (i + 1) * rows / shares - begin);
  }
}

template <class Lanes, class Number>
void product_with(const Int8Task<Number>& task, Kernel cast) {
  for (std::size_t panel = task.first_panel; panel < task.last_panel; ++panel) {
    each_share<kMostRows>(0, task.rows, [&](std::size_t row, std::size_t rows) {
      multiply_rows<Lanes>(task, cast, panel, row, rows);
    });
  }
}

// Calls act(shift, begin, end) for some inputs, part by part: those from begin to before end lie at
// their index and a shift.
template <class Act>
void each_part(const Int8Task<std::int8_t>& task, std::size_t begin, std::size_t end,
               const Act& act) {
  if (task.x_parts == nullptr) return act(0, begin, end);
  while (begin < end) {
    const std::size_t part = begin / task.x_part, first = part * task.x_part;
    const std::size_t last = end - first < task.x_part ? end : first + task.x_part;
    act(task.x_parts[part] - static_cast<std::ptrdiff_t>(first), begin, last);
    begin = last;
  }
}

// What the sums of these inputs have too much, for each of some rows.
template <class Lanes>
void find_excess(const Int8Task<std::int8_t>& task, const std::int8_t* const* x, std::size_t rows,
                 std::size_t begin, std::size_t end, std::int32_t* excess) {
  if constexpr (Lanes::kHasExcess) {
    each_part(task, begin, end, [&](std::ptrdiff_t shift, std::size_t first, std::size_t last) {
      for (std::size_t row = 0; row < rows; ++row) {
        excess[row] +=
            Lanes::excess(x[row] + shift + static_cast<std::ptrdiff_t>(first), last - first);
      }
    });
  }
}

// `x`: where each row begins. `excess` is that of all inputs, if they fit in one sum.
template <class Lanes>
void multiply_whole_rows(const Int8Task<std::int8_t>& task, Kernel cast, std::size_t panel,
                         std::size_t first_row, std::size_t rows, const std::int8_t* const* x,
                         const std::int32_t* excess) {
  alignas(64) std::int32_t sums[kMostRows * kPanel];
  const std::size_t inputs = task.weight.filled_inputs();
  const std::int8_t* weight = task.weight.data + panel * task.weight.panel_size();
  fetch_results(task, panel, first_row, rows);
  const auto add_all = [&](std::size_t begin, std::size_t end) {
    each_part(task, begin, end, [&](std::ptrdiff_t shift, std::size_t first, std::size_t last) {
      add_inputs<Whole<Lanes>>(x, shift, rows, weight, first, last, first == begin, sums);
    });
  };
  if (inputs == 0) std::memset(sums, 0, rows * kPanel * sizeof *sums);
  if (inputs <= kIntSum) {
    if (inputs != 0) add_all(0, inputs);
    finish_rows(task, cast, panel, first_row, rows, sums, excess);
    return;
  }
  alignas(64) double totals[kMostRows * kPanel] = {};  // whole numbers below 2^53
  for (std::size_t begin = 0; begin < inputs; begin += kIntSum) {
    const std::size_t end = inputs - begin < kIntSum ? inputs : begin + kIntSum;
    std::int32_t own_excess[kMostRows] = {};
    find_excess<Lanes>(task, x, rows, begin, end, own_excess);
    add_all(begin, end);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = row * kPanel; i < (row + 1) * kPanel; ++i)
        totals[i] += sums[i] - own_excess[row];
    }
  }
  finish_rows(task, cast, panel, first_row, rows, totals);
}

template <class Lanes>
void whole_product_with(const Int8Task<std::int8_t>& task, Kernel cast) {
  constexpr std::size_t kRowsOfExcess = 4 * kMostRows;  // for all panels at once
  each_share<kRowsOfExcess>(0, task.rows, [&](std::size_t first, std::size_t count) {
    const std::int8_t* x[kRowsOfExcess];
    std::int32_t excess[kRowsOfExcess] = {};
    find_rows(task, first, count, x);
    if (task.weight.filled_inputs() <= kIntSum)
      find_excess<Lanes>(task, x, count, 0, task.weight.filled_inputs(), excess);
    for (std::size_t panel = task.first_panel; panel < task.last_panel; ++panel) {
      each_share<kMostRows>(first, count, [&](std::size_t row, std::size_t rows) {
        multiply_whole_rows<Lanes>(task, cast, panel, row, rows, x + (row - first),
                                   excess + (row - first));
      });
    }
  });
}

}  // namespace
}  // namespace habana_mp::kernels
