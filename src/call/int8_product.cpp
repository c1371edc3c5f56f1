#include "call/int8_product.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cast/dtypes.h"
#include "cast/numbers.h"
#include "cast/parallel.h"
#include "kernels/cast_kernels.h"
#include "listen/child_casts.h"
#include "listen/watched_call.h"

namespace habana_mp {
namespace {

using kernels::Int8Weight;

// Rows that share a walk over a panel; a task of many rows is split between threads by these, too.
constexpr std::int64_t kRowsOfTask = 128;

// The tasks that are worth a thread: what takes it some 5 us.
std::int64_t grain_of(const Int8Weight& weight, std::int64_t rows) {
  const double bytes = static_cast<double>(std::max<std::size_t>(1, weight.inputs)) * weight.kPanel;
  const double seconds =
      bytes / 40e9 + bytes * static_cast<double>(std::min(rows, kRowsOfTask)) / 5e10;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(5e-6 / seconds));
}

// Runs `share(first_row, rows, first_panel, last_panel)` for all of a product. Blocks of rows are
// as equal as they can be: each reads all of the weight.
template <typename Share>
void for_each_task(const Int8Weight& weight, std::int64_t rows, const Share& share) {
  const auto panels = static_cast<std::int64_t>(weight.panels());
  const std::int64_t blocks = (rows + kRowsOfTask - 1) / kRowsOfTask;
  in_parallel(0, panels * blocks, grain_of(weight, rows), [&](std::int64_t at, std::int64_t end) {
    while (at < end) {  // panels of one block of rows after the other
      const std::int64_t block = at / panels, panel = at % panels;
      const std::int64_t last = std::min(panels, panel + end - at);
      const std::int64_t row = block * rows / blocks;
      share(row, (block + 1) * rows / blocks - row, panel, last);
      at += last - panel;
    }
  });
}

// Activations as a kernel reads them: numbers in float32 or bfloat16, rows x inputs, or in 8 bits,
// rows x filled inputs, with a scale for each row. Or those in 8 bits are windows.
struct Int8Rows {
  at::Tensor numbers;
  at::Tensor scales{};                                // of 8 bits alone
  std::optional<WindowParts> windows = std::nullopt;  // none: rows at one stride
};

// Of rows that lie one after the other.
Int8Rows quantized(const at::Tensor& input, DType via, std::int64_t rows, std::int64_t inputs) {
  constexpr auto kFill = static_cast<std::int64_t>(Int8Weight::kInputs);
  const std::int64_t filled = (inputs + kFill - 1) / kFill * kFill;
  Int8Rows made{at::empty({rows, filled}, at::TensorOptions(at::kChar)),
                at::empty({rows}, at::TensorOptions(at::kFloat))};
  const DType from = number_dtype(input);
  const auto* source = static_cast<const std::byte*>(input.const_data_ptr());
  const auto row_bytes = inputs * static_cast<std::int64_t>(input.itemsize());
  auto* numbers = static_cast<std::int8_t*>(made.numbers.mutable_data_ptr());
  auto* scales = static_cast<float*>(made.scales.mutable_data_ptr());
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, inputs));
  in_parallel(0, rows, grain, [&](std::int64_t first, std::int64_t last) {
    kernels::quantize_rows(from, via, source + first * row_bytes, inputs,
                           static_cast<std::size_t>(last - first), static_cast<std::size_t>(inputs),
                           numbers + first * filled, static_cast<std::size_t>(filled),
                           scales + first);
  });
  return made;
}

const float* numbers_of(const at::Tensor& floats) {
  return floats.defined() ? static_cast<const float*>(floats.const_data_ptr()) : nullptr;
}

std::byte* row_of_result(const at::Tensor& result, std::int64_t row) {
  return static_cast<std::byte*>(result.mutable_data_ptr()) +
         row * result.stride(0) * static_cast<std::int64_t>(result.itemsize());
}

template <typename Number>
void multiply_as(const Int8Rows& x, const Int8Weight& weight, const float* bias,
                 const at::Tensor& result) {
  const auto* numbers = static_cast<const Number*>(x.numbers.const_data_ptr());
  const float* scales = numbers_of(x.scales);
  const bool in_windows = x.windows.has_value();
  const std::int64_t stride = in_windows ? 0 : x.numbers.stride(0);
  const auto share = [&](std::int64_t row, std::int64_t rows, std::int64_t panel,
                         std::int64_t last) {
    std::array<std::ptrdiff_t, kRowsOfTask> places;
    if (in_windows)
      find_windows(x.numbers, x.windows->dims, row,
                   {places.data(), static_cast<std::size_t>(rows)});
    kernels::int8_product(kernels::Int8Task<Number>{
        .x = numbers + row * stride,
        .x_row_stride = stride,
        .rows = static_cast<std::size_t>(rows),
        .weight = weight,
        .bias = bias,
        .to = number_dtype(result),
        .out = row_of_result(result, row),
        .out_row_stride = result.stride(0),
        .first_panel = static_cast<std::size_t>(panel),
        .last_panel = static_cast<std::size_t>(last),
        .x_scales = scales == nullptr ? nullptr : scales + row,
        .x_rows = in_windows ? places.data() : nullptr,
        .x_parts = in_windows ? x.windows->from.data() : nullptr,
        .x_part = in_windows ? static_cast<std::size_t>(x.windows->length) : 0});
  };
  for_each_task(weight, result.size(0), share);
}

// `result` has rows of outputs, whose numbers lie one after the other.
void multiply(const Int8Rows& x, const Int8Weight& weight, const float* bias,
              const at::Tensor& result) {
  const auto as = x.scales.defined()                           ? &multiply_as<std::int8_t>
                  : number_dtype(x.numbers) == DType::BFloat16 ? &multiply_as<std::uint16_t>
                                                               : &multiply_as<float>;
  as(x, weight, bias, result);
}

// Contiguous numbers: low ones, or float32.
Int8Rows floating(const at::Tensor& numbers) {
  const DType dtype = number_dtype(numbers);
  const auto multiplies = [&] {
    return kernels::multiplies_bfloat16(static_cast<const std::uint16_t*>(numbers.const_data_ptr()),
                                        static_cast<std::size_t>(numbers.numel()));
  };
  if (dtype == DType::Float32 || (dtype == DType::BFloat16 && multiplies())) return {numbers, {}};
  return {cast_numbers(numbers, DType::Float32, {}, Lifetime::Call), {}};
}

at::Tensor channels_last(const at::Tensor& images) { return images.movedim(1, -1).contiguous(); }

// Images whose channels come last then. They are rounded as they lie, so that what moves is bytes.
Int8Rows quantized_images(const at::Tensor& images, DType via) {
  const std::int64_t count = images.size(0), numbers = images.numel() / count;
  const bool in_rows = images.is_non_overlapping_and_dense() && images.stride(0) == numbers;
  const at::Tensor dense = in_rows ? images : images.contiguous();
  Int8Rows made = quantized(dense, via, count, numbers);
  at::DimVector strides(dense.strides());
  strides.front() = made.numbers.stride(0);
  made.numbers = channels_last(made.numbers.as_strided(dense.sizes(), strides));
  return made;
}

// The panels of some outputs, which begin with a panel.
Int8Weight part_of(const Int8Weight& weight, std::size_t first, std::size_t count) {
  Int8Weight part = weight;
  part.data += first / Int8Weight::kPanel * weight.panel_size();
  part.scales += first;
  part.outputs = count;
  return part;
}

// The memory that the windows of a block take, unless a few rows take more.
constexpr std::int64_t kBlockBytes = 1 << 20, kRowsOfBlock = 2 * kRowsOfTask;

}  // namespace

at::Tensor int8_copy(const at::Tensor& weight, Layout layout,
                     std::optional<WeightCache::Caller> caller, const at::Tensor& known) {
  if (known.defined()) return known;
  listen::Observer* observer = listen::observer_of_call();
  const std::uint64_t start = observer == nullptr ? 0 : now_ns();
  bool was_cached = false;
  at::Tensor copy;
  if (caller && WeightCache::accepts(weight, DType::Int8))
    copy = weight_cache().packed(weight, DType::Int8, {layout}, *caller, was_cached).copy;
  if (!copy.defined()) copy = rounded_to_int8(weight, layout);
  listen::count_in_parent();
  if (observer != nullptr) {
    observer->casts(
        weight, copy,
        {dtype_of(weight), DType::Int8, was_cached, copy.nbytes(), start, now_ns() - start});
  }
  return copy;
}

at::Tensor int8_rows(const at::Tensor& input, const Int8Weights& weights, const at::Tensor& bias,
                     Int8Activations activations, at::ScalarType result) {
  const auto inputs = static_cast<std::int64_t>(weights.front().inputs);
  const auto outputs = static_cast<std::int64_t>(weights.front().outputs);
  at::DimVector sizes(input.sizes());
  sizes.back() = outputs;
  std::int64_t rows = 1;
  for (const std::int64_t size : input.sizes().slice(0, sizes.size() - 1)) rows *= size;
  const at::Tensor made = at::empty({rows, outputs}, at::TensorOptions(result));
  if (rows == 0 || outputs == 0) return made.view(sizes);
  const at::Tensor added = bias.defined() ? bias.contiguous() : bias;
  const Int8Rows x = activations ? quantized(input, *activations, rows, inputs)
                                 : floating(input.view({rows, inputs}));
  const auto each = rows / static_cast<std::int64_t>(weights.size());
  for (std::int64_t row = 0; const Int8Weight& weight : weights) {
    const auto share = [&](const at::Tensor& all) {
      return each == rows || !all.defined() ? all : all.narrow(0, row, each);
    };
    multiply({share(x.numbers), share(x.scales)}, weight, numbers_of(added), share(made));
    row += each;
  }
  return made.view(sizes);
}

at::Tensor int8_windows(const at::Tensor& images, const Int8Weight& weight,
                        at::IntArrayRef weight_sizes, const at::Tensor& bias,
                        const Int8Windows& windows, Int8Activations activations,
                        at::ScalarType result) {
  const auto inputs = static_cast<std::int64_t>(weight.inputs);
  const std::int64_t count = images.size(0), outputs = weight_sizes[0];
  const std::int64_t groups = windows.groups, each = outputs / groups;
  const at::IntArrayRef kernel = weight_sizes.slice(2);
  const Int8Rows image_rows =
      activations ? quantized_images(images, *activations) : floating(channels_last(images));
  const at::Tensor views = windows_in(image_rows.numbers, kernel, windows);
  at::DimVector sizes{count};
  std::int64_t places = 1;
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    sizes.push_back(views.size(static_cast<std::int64_t>(i) + 1));
    places *= sizes.back();
  }
  sizes.push_back(outputs);
  const at::Tensor made = at::empty({count * places, outputs}, at::TensorOptions(result));
  const at::Tensor added = bias.defined() ? bias.contiguous() : bias;
  const std::int64_t channels = weight_sizes[1];
  constexpr auto kFill = static_cast<std::int64_t>(Int8Weight::kInputs),
                 kPanel = static_cast<std::int64_t>(Int8Weight::kPanel);
  const std::int64_t filled = activations ? (inputs + kFill - 1) / kFill * kFill : inputs;
  const std::int64_t row_bytes = filled * static_cast<std::int64_t>(views.itemsize());
  const std::int64_t most = std::max(kRowsOfBlock, kBlockBytes / row_bytes);
  at::Tensor scales;  // of each row that of its image
  if (activations) {
    const at::Tensor of_images = image_rows.scales.unsqueeze(1);
    scales = of_images.expand({count, places}).contiguous().view({count * places});
  }
  for (std::int64_t group = 0; group < groups; ++group) {
    const at::Tensor view = views.narrow(-1, group * channels, channels);
    // Where outputs of the group begin inside of a panel, those before them are computed too.
    const std::int64_t first = group * each, from = first / kPanel * kPanel;
    const Int8Weight part = part_of(weight, static_cast<std::size_t>(from),
                                    static_cast<std::size_t>(first + each - from));
    const bool own = from == first;
    const float* bias_of_part = numbers_of(added);
    if (bias_of_part != nullptr) bias_of_part += from;
    const WindowParts parts = parts_of_windows(view, kernel.size() + 1);
    // Read as they lie, without a copy; whole windows at one stride are rows.
    const bool in_rows = parts.length == inputs && parts.stride;
    const bool in_parts = activations && parts.length % kFill == 0 && !in_rows;
    const auto multiply_block = [&](const at::Tensor& block, std::int64_t row) {
      const std::int64_t rows = block.numel() / inputs;
      const at::Tensor target = made.narrow(0, row, rows).narrow(1, first, each);
      const at::Tensor out =
          own ? target : at::empty({rows, first + each - from}, at::TensorOptions(result));
      const std::size_t dims = static_cast<std::size_t>(block.dim()) - kernel.size() - 1;
      Int8Rows x{.numbers = in_parts ? block : rows_of_windows(block, dims, inputs, filled)};
      if (activations) x.scales = scales.narrow(0, row, rows);
      if (in_parts) x.windows = parts;
      multiply(x, part, bias_of_part, out);
      if (!own) target.copy_(out.narrow(1, first - from, each));
    };
    for_each_block(view, kernel.size() + 1, in_parts ? count * places : most, multiply_block);
  }
  const at::Tensor channels_first = made.view(sizes).movedim(-1, 1);
  return channels_first.contiguous(images.suggest_memory_format());
}

at::Tensor int8_lookup(const at::Tensor& indices, const Int8Weight& weight, at::ScalarType result) {
  const auto rows = static_cast<std::int64_t>(weight.outputs);
  const auto inputs = static_cast<std::int64_t>(weight.inputs);
  const auto* wanted = static_cast<const std::int64_t*>(indices.const_data_ptr());
  const std::int64_t count = indices.numel();
  TORCH_CHECK_INDEX(
      std::all_of(wanted, wanted + count, [&](std::int64_t row) { return row >= 0 && row < rows; }),
      "index out of range in self");
  at::DimVector sizes(indices.sizes());
  sizes.push_back(inputs);
  const at::Tensor made = at::empty(sizes, at::TensorOptions(result));
  auto* out = static_cast<std::byte*>(made.mutable_data_ptr());
  const std::int64_t row_bytes = inputs * static_cast<std::int64_t>(made.itemsize());
  const kernels::Kernel narrow = kernels::kernel(DType::Float32, number_dtype(made));
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, inputs));
  in_parallel(0, count, grain, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> row(weight.inputs);
    for (std::int64_t i = first; i < last; ++i) {
      kernels::dequantize_output(weight, static_cast<std::size_t>(wanted[i]), row.data());
      narrow(row.data(), out + i * row_bytes, row.size());
    }
  });
  return made;
}

}  // namespace habana_mp
