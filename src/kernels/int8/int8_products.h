// What a walk over a panel multiplies, in three kinds, each by the registers of an instruction set.
//
// `FloatLanes` and `IntLanes` have kWidth outputs in registers: Sum, their sums in float32 or
// int32; and sums(rows) of them for each of up to kRows rows. FloatLanes add kTerm inputs of an
// output with one call, which are a Term of the weight: X, the numbers that these inputs are.
// They convert weights once for all walks where there are more than kFusedRows rows. Lanes have
// what is called here and in int8_blocks.h.
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

// The terms of a step in the order of int8.h, by their first inputs: of two inputs the second comes
// first, as in the instruction that adds both of them.
template <class Lanes>
constexpr std::size_t kTerms = kInputs / Lanes::kTerm;
template <class Lanes, std::size_t kTerm>
constexpr std::size_t kInputOfTerm = Lanes::kTerm == 2 ? 2 * kTerm : kTerm ^ 1;

// Floating-point numbers by int8, which becomes such on the way.
template <class FloatLanes>
struct Fused {
  using Lanes = FloatLanes;
  using X = typename Lanes::X;
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
                                          const Weight* weight, const X* const (&x)[kRowCount],
                                          std::size_t k) {
    if constexpr (kRowCount == 1) {
      typename Lanes::Term number[kTerms<Lanes>];
      times<kTerms<Lanes>>([&](auto t) __attribute__((always_inline)) {
        number[t] = Lanes::spread(x[0] + k + kInputOfTerm<Lanes, t>);
      });
      times<kSums>([&](auto j) __attribute__((always_inline)) {
        const typename Lanes::Weights weights = Lanes::weights(at(weight, j * Lanes::kWidth));
        times<kTerms<Lanes>>([&](auto t) __attribute__((always_inline)) {
          sum[0][j] = Lanes::add(sum[0][j], number[t],
                                 Lanes::template widen<kInputOfTerm<Lanes, t>>(weights));
        });
      });
    } else {
      times<kTerms<Lanes>>([&](auto t) __attribute__((always_inline)) {
        constexpr std::size_t kInput = kInputOfTerm<Lanes, t>;
        typename Lanes::Term q[kSums];
        times<kSums>([&](auto j) __attribute__((always_inline)) {
          q[j] = Lanes::template widen<kInput>(Lanes::weights(at(weight, j * Lanes::kWidth)));
        });
        times<kRowCount>([&](auto i) __attribute__((always_inline)) {
          const typename Lanes::Term number = Lanes::spread(x[i] + k + kInput);
          times<kSums>([&](auto j) __attribute__((always_inline)) {
            sum[i][j] = Lanes::add(sum[i][j], number, q[j]);
          });
        });
      });
    }
  }
};

// Floating-point numbers by int8 that became such before. A step has a term of all outputs, then
// the next one.
template <class FloatLanes>
struct Converted {
  using Lanes = FloatLanes;
  using X = typename Lanes::X;
  using Element = float;
  using Weight = X;
  static constexpr bool kConverts = true, kFilled = false;
  static constexpr std::size_t kRows = Lanes::kConvertedRows, kChunk = Lanes::kConvertedChunk,
                               kMostBlocks = 4;
  static constexpr std::size_t sums(std::size_t) { return Lanes::kConvertedSums; }

  static const Weight* at(const Weight* step, std::size_t output) {
    return step + output * Lanes::kTerm;
  }

  static void convert(const std::int8_t* weight, std::size_t steps, Weight* to) {
    for (; steps != 0; --steps) {
      for (std::size_t i = 0; i < kPanel; i += Lanes::kWidth) {
        const typename Lanes::Weights weights = Lanes::weights(weight + i * kInputs);
        times<kTerms<Lanes>>([&](auto t) __attribute__((always_inline)) {
          constexpr std::size_t kInput = t * Lanes::kTerm;
          Lanes::store(to + kInput * kPanel + i * Lanes::kTerm,
                       Lanes::template widen<kInput>(weights));
        });
      }
      weight += kStep;
      to += kStep;
    }
  }

  template <std::size_t kRowCount, std::size_t kSums>
  [[gnu::always_inline]] static void step(typename Lanes::Sum (&sum)[kRowCount][kSums],
                                          const Weight* weight, const X* const (&x)[kRowCount],
                                          std::size_t k) {
    times<kTerms<Lanes>>([&](auto t) __attribute__((always_inline)) {
      constexpr std::size_t kInput = kInputOfTerm<Lanes, t>;
      times<kRowCount>([&](auto i) __attribute__((always_inline)) {
        const typename Lanes::Term number = Lanes::spread(x[i] + k + kInput);
        times<kSums>([&](auto j) __attribute__((always_inline)) {
          sum[i][j] =
              Lanes::add(sum[i][j], number,
                         Lanes::load(weight + kInput * kPanel + j * Lanes::kWidth * Lanes::kTerm));
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
                                          const Weight* weight, const X* const (&x)[kRowCount],
                                          std::size_t k) {
    times<kRowCount>([&](auto i) __attribute__((always_inline)) {
      const auto four = Lanes::spread(x[i] + k);
      times<kSums>([&](auto j) __attribute__((always_inline)) {
        sum[i][j] = Lanes::add(sum[i][j], Lanes::weights(at(weight, j * Lanes::kWidth)), four);
      });
    });
  }
};

}  // namespace
}  // namespace habana_mp::kernels
