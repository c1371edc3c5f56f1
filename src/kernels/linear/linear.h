// A linear layer of few rows of bfloat16 over a weight that oneDNN has packed: it reads the weight
// once, as fast as the memory gives it. It must not know Python, torch, oneDNN or threads: the
// caller splits the panels of the weight between its threads.
//
// There are two variants: for AVX-512 with its bfloat16 instructions, and a scalar one, against
// which the tests hold it; products use the first alone (has_kernel of call/packed_choice.cpp).
// Each adds the products of an output to float32 numbers in an Order, with one rounding for a
// product and its addition. Then it adds the bias and rounds to nearest even. So the bits depend
// neither on the other rows nor on how panels are split. The two differ in two things:
// - Avx512Bf16 takes subnormals for zeros, among the elements, the sums and the results, because
//   its instruction does. Additions of sums keep them, and so do all of Order::InOrder, which has
//   no such instruction, but for its results. So does oneDNN, whose bits are these. The other
//   variant keeps subnormals.
// - Which of several NaNs a NaN comes from. All of them are quiet.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace habana_mp::kernels {

// In which order the products of an output are added, all as oneDNN has them: the first of several
// rows, and of one in torch 2.13; the others of one row in torch 2.15, by a weight that lies
// outputs x inputs (Turns) or inputs x outputs (InOrder).
enum class Order : std::uint8_t {
  Pairs,  // of k, the odd one of a pair first; after LinearTask::sum of them a new sum begins, and
          // is added to those before
  Turns,  // pairs of k take turns among 16 sums, the odd one first; then 8 are added to 8, 4 to 4,
          // and the neighbours of the last four
  InOrder,  // of k, in one sum
};

// Panels of 64 outputs. A panel has two elements of its first output, k and k + 1, then the same
// two of the next, and after 64 outputs the next two k. Outputs and inputs are filled up with
// zeros.
struct PackedWeight {
  static constexpr std::size_t kPanel = 64;
  static constexpr std::size_t kInputs = 32;  // filled up to a multiple

  const std::uint16_t* data;
  std::size_t outputs, inputs;

  constexpr std::size_t panels() const { return (outputs + kPanel - 1) / kPanel; }
  constexpr std::size_t filled_inputs() const { return (inputs + kInputs - 1) / kInputs * kInputs; }
  // In elements
  constexpr std::size_t panel_size() const { return kPanel * filled_inputs(); }
  constexpr std::size_t size() const { return panels() * panel_size(); }
  constexpr std::size_t place(std::size_t output, std::size_t input) const {
    return output / kPanel * panel_size() + input / 2 * (2 * kPanel) + output % kPanel * 2 +
           input % 2;
  }
};

// How many k oneDNN adds up before it begins the next sum at zero; the sums are then added in their
// order. Found by measuring the oneDNN of torch 2.13 where it has AVX-512 with bfloat16 and no AMX.
// So a caller who wants its bits has to compare some first.
constexpr std::size_t inputs_of_sum(std::size_t rows, std::size_t inputs) {
  return rows == 1 || inputs <= 1024 ? 512 : 1024;
}

// Where oneDNN may split k between threads: for these few outputs linear() has not its order.
constexpr bool splits_inputs(std::size_t rows, const PackedWeight& weight, std::size_t threads) {
  return rows == 1 && weight.inputs >= 2048 && std::has_single_bit(weight.inputs) &&
         threads > weight.panels();
}

// Of one row in Order::Turns and Order::InOrder: how many k oneDNN has in one sum at most, and
// whether it splits those of InOrder between threads. Beyond that linear() has not its order.
inline constexpr std::size_t kMostOfOneSum = 16384;
constexpr bool splits_in_order(const PackedWeight& weight, std::size_t threads) {
  return threads > 1 && std::has_single_bit(weight.outputs) && weight.outputs <= 32 * threads;
}

// out[row][output] = bias[output] + the sum of x[row][k] * weight[output][k], for the outputs of
// the panels from first_panel to before last_panel. Row strides are counted in elements and may be
// of any sign. x, bias and out may be aligned anyhow, the weight to 2 bytes; lines of 64 bytes are
// fastest. What is written may not overlap what is read.
struct LinearTask {
  const std::uint16_t* x;
  std::ptrdiff_t x_row_stride;
  std::size_t rows;
  PackedWeight weight;
  const std::uint16_t* bias;  // null: none
  std::uint16_t* out;
  std::ptrdiff_t out_row_stride;
  std::size_t first_panel, last_panel;
  std::size_t sum;  // how many k one sum takes: even, not 0. Of Order::Pairs alone
  Order order = Order::Pairs;
};

void linear(const LinearTask& task);

// Its variants, each in a source that is compiled for the instruction set.
void linear_scalar(const LinearTask& task);
void linear_avx512_bf16(const LinearTask& task);

}  // namespace habana_mp::kernels
