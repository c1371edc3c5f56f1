// What a walk over a panel multiplies, in three kinds, each by the registers of an instruction set.
//
// `FloatLanes` and `IntLanes` have kWidth outputs in registers: Sum, their sums in float32 or
// int32; and sums(rows) of them for each of up to kRows rows. FloatLanes convert weights once for
// all walks where there are more than kFusedRows rows. They have what is called here and in
// int8_blocks.h.
//
// A kind has the types of the numbers: X, those of x; Weight, those of the weight; Element, those
// of the sums. at() is the place of an output in a step, and kChunk the inputs of a turn: their
// weights stay in the L1 cache while all rows have theirs.
//
// As in blocks.h all here is local to the file that includes it, which is compiled for a CPU of its
// own.
#pragma once

#include <utility>

#include "kernels/int8/int8_table.h"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t kPanel = Int8Weight::kPanel, kInputs = Int8Weight::kInputs;
constexpr std::size_t kStep = kPanel * kInputs;  // numbers of a panel that a walk takes at once

template <std::size_t kIndex>
struct Index {
  constexpr operator std::size_t() const { return kIndex; }
};

// Loops that have to be unrolled, or sums would not stay in registers. No optimizer is asked.
template <std::size_t kCount, class Act>
[[gnu::always_inline]] inline void times(const Act& act) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) __attribute__((always_inline)) {
    (act(Index<kIndex>()), ...);
  }(std::make_index_sequence<kCount>());
}

// float32 by int8, which becomes float32 on the way.
template <class FloatLanes>
struct Fused {
  using Lanes = FloatLanes;
  using X = float;
  using Element = float;
  using Weight = std::int8_t;
  static constexpr bool kConverts = false, kFilled = false;
  static constexpr std::size_t kRows = Lanes::kRows, kChunk = 256;
  static constexpr std::size_t kMostBlocks = Lanes::kFusedRows / kRows;
  static constexpr std::size_t sums(std::size_t rows) { return Lanes::sums(rows); }

  static const Weight* at(const Weight* step, std::size_t output) {
    return step + output * kInputs;
  }

  template <std::size_t kRowCount, std::size_t kSums>
  [[gnu::always_inline]] static void step(typename Lanes::Sum (&sum)[kRowCount][kSums],
                                          const Weight* weight, const X* x,
                                          std::ptrdiff_t x_row_stride) {
    if constexpr (kRowCount == 1) {
      typename Lanes::Sum number[kInputs];
      times<kInputs>([&](auto k)
                         __attribute__((always_inline)) { number[k] = Lanes::spread(x + k); });
      times<kSums>([&](auto j) __attribute__((always_inline)) {
        const typename Lanes::Weights weights = Lanes::weights(at(weight, j * Lanes::kWidth));
        times<kInputs>([&](auto k) __attribute__((always_inline)) {
          sum[0][j] = Lanes::add(sum[0][j], number[k], Lanes::template widen<k>(weights));
        });
      });
    } else {
      times<kInputs>([&](auto k) __attribute__((always_inline)) {
        typename Lanes::Sum q[kSums];
        times<kSums>([&](auto j) __attribute__((always_inline)) {
          q[j] = Lanes::template widen<k>(Lanes::weights(at(weight, j * Lanes::kWidth)));
        });
        times<kRowCount>([&](auto i) __attribute__((always_inline)) {
          const typename Lanes::Sum number =
              Lanes::spread(x + static_cast<std::ptrdiff_t>(i) * x_row_stride + k);
          times<kSums>([&](auto j) __attribute__((always_inline)) {
            sum[i][j] = Lanes::add(sum[i][j], number, q[j]);
          });
        });
      });
    }
  }
};

// float32 by int8 that became float32 before. A step has kPanel outputs of its first input, then
// those of the next.
template <class FloatLanes>
struct Converted {
  using Lanes = FloatLanes;
  using X = float;
  using Element = float;
  using Weight = float;
  static constexpr bool kConverts = true, kFilled = false;
  static constexpr std::size_t kRows = Lanes::kConvertedRows, kChunk = 64, kMostBlocks = 4;
  static constexpr std::size_t sums(std::size_t) { return Lanes::kConvertedSums; }

  static const Weight* at(const Weight* step, std::size_t output) { return step + output; }

  static void convert(const std::int8_t* weight, std::size_t steps, Weight* to) {
    for (; steps != 0; --steps) {
      for (std::size_t i = 0; i < kPanel; i += Lanes::kWidth) {
        const typename Lanes::Weights weights = Lanes::weights(weight + i * kInputs);
        times<kInputs>([&](auto k) __attribute__((always_inline)) {
          Lanes::store(to + k * kPanel + i, Lanes::template widen<k>(weights));
        });
      }
      weight += kStep;
      to += kStep;
    }
  }

  template <std::size_t kRowCount, std::size_t kSums>
  [[gnu::always_inline]] static void step(typename Lanes::Sum (&sum)[kRowCount][kSums],
                                          const Weight* weight, const X* x,
                                          std::ptrdiff_t x_row_stride) {
    times<kInputs>([&](auto k) __attribute__((always_inline)) {
      times<kRowCount>([&](auto i) __attribute__((always_inline)) {
        const typename Lanes::Sum number =
            Lanes::spread(x + static_cast<std::ptrdiff_t>(i) * x_row_stride + k);
        times<kSums>([&](auto j) __attribute__((always_inline)) {
          sum[i][j] =
              Lanes::add(sum[i][j], number, Lanes::load(weight + k * kPanel + j * Lanes::kWidth));
        });
      });
    });
  }
};

// int8 by int8. Rows of x are filled up as the weight is.
template <class IntLanes>
struct Whole {
  using Lanes = IntLanes;
  using X = std::int8_t;
  using Element = std::int32_t;
  using Weight = std::int8_t;
  static constexpr bool kConverts = false, kFilled = true;
  static constexpr std::size_t kRows = Lanes::kRows, kChunk = 256, kMostBlocks = 4;
  static constexpr std::size_t sums(std::size_t rows) { return Lanes::sums(rows); }

  static const Weight* at(const Weight* step, std::size_t output) {
    return step + output * kInputs;
  }

  template <std::size_t kRowCount, std::size_t kSums>
  [[gnu::always_inline]] static void step(typename Lanes::Sum (&sum)[kRowCount][kSums],
                                          const Weight* weight, const X* x,
                                          std::ptrdiff_t x_row_stride) {
    times<kRowCount>([&](auto i) __attribute__((always_inline)) {
      const auto four = Lanes::spread(x + static_cast<std::ptrdiff_t>(i) * x_row_stride);
      times<kSums>([&](auto j) __attribute__((always_inline)) {
        sum[i][j] = Lanes::add(sum[i][j], Lanes::weights(at(weight, j * Lanes::kWidth)), four);
      });
    });
  }
};

}  // namespace
}  // namespace habana_mp::kernels
