// Products with weights of 8 bits. A weight is rounded to int8 with a float32 scale for each
// output; int8_product() multiplies it with activations in float32 or bfloat16, or with those that
// quantize_rows() has rounded in the same way, with a scale for each row. All of it must not know
// Python, torch or threads: the caller splits the panels of a weight, and the rows of activations,
// between its threads.
//
// Every variant gives the same bits (of a NaN: that it is one), and they depend neither on the
// other rows nor on how panels are split. They are:
// - A row v is rounded with the scale s = max|v| / 127, and q = v / s rounded to nearest even. Both
//   are float32 divisions, which leave q within -127..127. A row with a NaN or an infinity has the
//   scale NaN and q = 0. One whose scale would be less than the smallest normal float32, or that
//   has no numbers, has the scale 0 and q = 0.
// - Of floating-point activations x * q is added to a float32 sum, of each two inputs the second
//   one first, with one rounding for a product and its addition. After kFloatSum inputs a new sum
//   begins at zero, and is added to the total of those before. The total is multiplied by the
//   scale.
// - Of int8 activations all products are added exactly, and the sum is rounded to float32. It is
//   multiplied by the scale of the row, then by the scale of the output.
// - Both then add the bias, if there is one, and round to nearest even to the dtype of the result,
//   as the casts do: overflow is infinite, NaNs are quiet. Each step rounds on its own.
// Subnormals are kept, unless the thread has set its CPU to flush them.
//
// Strides are counted in elements. Pointers may be aligned to their elements alone; weights whose
// data lies on lines of 64 bytes are fastest. What is written may not overlap what is read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "policy/dtype.h"

namespace habana_mp::kernels {

// Panels of 64 outputs. A panel has four numbers of its first output, k to k + 3, then the same
// four of the next, and after 64 outputs the next four k. Outputs and inputs are filled up with
// zeros.
struct Int8Weight {
  static constexpr std::size_t kPanel = 64;
  static constexpr std::size_t kInputs = 4;  // filled up to a multiple

  const std::int8_t* data;  // size() numbers
  const float* scales;      // one for each output, filled up to whole panels
  std::size_t outputs, inputs;

  constexpr std::size_t panels() const { return (outputs + kPanel - 1) / kPanel; }
  constexpr std::size_t filled_inputs() const { return (inputs + kInputs - 1) / kInputs * kInputs; }
  // In numbers, which are bytes
  constexpr std::size_t panel_size() const { return kPanel * filled_inputs(); }
  constexpr std::size_t size() const { return panels() * panel_size(); }
  constexpr std::size_t place(std::size_t output, std::size_t input) const {
    return output / kPanel * panel_size() + input / kInputs * (kInputs * kPanel) +
           output % kPanel * kInputs + input % kInputs;
  }
};

// How many inputs one float32 sum takes.
constexpr std::size_t kFloatSum = 512;

// Rounds a float32 weight whose strides may be of any sign: the panels from first_panel to before
// last_panel. `data` and `scales` are those of the whole Int8Weight, with room for what fills it
// up.
void pack_int8(const float* weight, std::ptrdiff_t output_stride, std::ptrdiff_t input_stride,
               std::int8_t* data, float* scales, std::size_t outputs, std::size_t inputs,
               std::size_t first_panel, std::size_t last_panel);

// One output as `inputs` float32 numbers, q * scale: NaN everywhere where the scale is NaN.
void dequantize_output(const Int8Weight& weight, std::size_t output, float* row);

// Rounds rows of bfloat16, float16 or float32 numbers (another dtype: std::invalid_argument), as if
// they had been cast to `via` before, which is one of these, too. Each row of q gets
// filled_inputs() bytes, those after `inputs` zero, and scales[row] its scale.
void quantize_rows(DType from, DType via, const void* x, std::ptrdiff_t x_row_stride,
                   std::size_t rows, std::size_t inputs, std::int8_t* q, std::size_t q_row_stride,
                   float* scales);

// out[row][output], for the outputs of the panels from first_panel to before last_panel.
template <class Number>
struct Int8Task {
  // Rows of weight.inputs float32 or bfloat16 numbers, or of weight.filled_inputs() within
  // -127..127
  const Number* x;
  std::ptrdiff_t x_row_stride;
  std::size_t rows;
  Int8Weight weight;
  const float* bias;  // null: none
  DType to;           // BFloat16, Float16 or Float32, else std::invalid_argument
  void* out;
  std::ptrdiff_t out_row_stride;
  std::size_t first_panel, last_panel;
  // Of int8 numbers alone: a scale for each row, and rows that are not one after the other, as
  // windows of an image.
  const float* x_scales = nullptr;
  const std::ptrdiff_t* x_rows = nullptr;   // where each begins, in place of the stride
  const std::ptrdiff_t* x_parts = nullptr;  // where its parts begin, from there; null: it has one
  std::size_t x_part = 0;                   // the inputs of a part, a multiple of kInputs
};

// Whether these bfloat16 numbers are multiplied as they are: by an instruction that takes
// subnormals for zeros, so no sum of them may be subnormal. Others have to be widened to float32.
bool multiplies_bfloat16(const std::uint16_t* x, std::size_t count);

void int8_product(const Int8Task<std::uint16_t>& task);  // of such numbers alone
void int8_product(const Int8Task<float>& task);
void int8_product(const Int8Task<std::int8_t>& task);

}  // namespace habana_mp::kernels
