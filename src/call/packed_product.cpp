#include "call/packed_product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <optional>

#include "base/torch_private.h"
#include "cast/parallel.h"
#include "kernels/linear/linear.h"

namespace habana_mp {
namespace {

kernels::PackedWeight memory_of(const WeightCache::Packed& packed) {
  return {static_cast<const std::uint16_t*>(packed.data),
          static_cast<std::size_t>(packed.copy.size(0)),
          static_cast<std::size_t>(packed.copy.size(1))};
}

// The panels that are worth a thread: what takes it some 5 us, at the speed of its cache and of its
// arithmetic.
std::int64_t panels_of_thread(std::int64_t rows, std::int64_t inputs) {
  const double bytes = static_cast<double>(inputs) * 2 * kernels::PackedWeight::kPanel;
  const double seconds = bytes / 80e9 + bytes * static_cast<double>(rows) / 4.8e11;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(5e-6 / seconds));
}

at::Tensor by_our_kernel(kernels::Order order, const at::Tensor& input,
                         const WeightCache::Packed& packed, const at::Tensor& bias) {
  const at::Tensor added = bias.defined() ? bias.contiguous() : bias;
  const kernels::PackedWeight weight = memory_of(packed);
  const auto inputs = static_cast<std::int64_t>(weight.inputs);
  const std::int64_t rows = input.numel() / inputs;
  at::DimVector sizes(input.sizes());
  sizes.back() = static_cast<std::int64_t>(weight.outputs);
  at::Tensor result = torch_private::empty_strided_on_cpu(sizes, c10::contiguous_strides(sizes),
                                                          c10::GetCPUAllocator(), at::kBFloat16);
  const kernels::LinearTask task{
      .x = static_cast<const std::uint16_t*>(input.const_data_ptr()),
      .x_row_stride = static_cast<std::ptrdiff_t>(inputs),
      .rows = static_cast<std::size_t>(rows),
      .weight = weight,
      .bias = bias.defined() ? static_cast<const std::uint16_t*>(added.const_data_ptr()) : nullptr,
      .out = static_cast<std::uint16_t*>(result.mutable_data_ptr()),
      .out_row_stride = static_cast<std::ptrdiff_t>(weight.outputs),
      .first_panel = 0,
      .last_panel = weight.panels(),
      .sum = kernels::inputs_of_sum(static_cast<std::size_t>(rows), weight.inputs),
      .order = order,
  };
  in_parallel(0, static_cast<std::int64_t>(weight.panels()), panels_of_thread(rows, inputs),
              [&task](std::int64_t first, std::int64_t last) {
                kernels::LinearTask share = task;
                share.first_panel = static_cast<std::size_t>(first);
                share.last_panel = static_cast<std::size_t>(last);
                kernels::linear(share);
              });
  return result;
}

at::Tensor by_onednn(const at::Tensor& input, const at::Tensor& packed, const at::Tensor& bias) {
  if (input.dim() == 2) return torch_private::packed_linear(input, packed, bias);
  at::DimVector sizes(input.sizes());
  sizes.back() = packed.size(0);
  return torch_private::packed_linear(input.view({-1, packed.size(1)}), packed, bias).view(sizes);
}

}  // namespace

bool is_readable(const WeightCache::Packed& packed, const at::Tensor& plain) {
  const kernels::PackedWeight weight = memory_of(packed);
  if (weight.data == nullptr || bytes_of_copy(packed.copy) != 2 * weight.size()) return false;
  const auto* numbers = static_cast<const std::uint16_t*>(plain.const_data_ptr());
  // Steps that have no factor with a size: every output and every input is among the places.
  constexpr std::size_t kPlaces = 1 << 16;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    const std::size_t output = i * 7919 % weight.outputs;
    const std::size_t input = i * 104729 % weight.inputs;
    if (weight.data[weight.place(output, input)] != numbers[output * weight.inputs + input]) {
      return false;
    }
  }
  return true;
}

at::Tensor product(By way, Layout layout, const at::Tensor& input,
                   const WeightCache::Packed& weight, const at::Tensor& bias) {
  using kernels::Order;
  if (way != By::OurKernel && way != By::OurRow) return by_onednn(input, weight.copy, bias);
  // A weight of one input lies in both ways, and is taken for outputs x inputs.
  const bool turned = layout == Layout::Addmm && weight.copy.size(1) > 1;
  const Order of_one = turned ? Order::InOrder : Order::Turns;
  return by_our_kernel(way == By::OurRow ? of_one : Order::Pairs, input, weight, bias);
}

at::Tensor product_of_plain(Layout layout, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias) {
  if (layout == Layout::Addmm) return at::addmm(bias, input, weight);
  return at::linear(input, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

}  // namespace habana_mp
