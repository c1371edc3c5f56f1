#include "weights/int8_weight.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cast/dtypes.h"
#include "cast/numbers.h"
#include "cast/parallel.h"
#include "cast/storage_check.h"

namespace habana_mp {
namespace {

constexpr std::int64_t kMostDims = 5;

// At the beginning of a copy. A line of the cache, as what follows is read in such.
struct alignas(64) Head {
  std::int64_t outputs, inputs;
  std::array<std::int64_t, kMostDims> sizes{}, strides{};
  std::int64_t dims;
  Layout layout;
};

Head head_of(const at::Tensor& weight, Layout layout) {
  const bool turned = layout == Layout::Int8Turned;
  const std::int64_t outputs = weight.size(turned ? 1 : 0);
  Head head{.outputs = outputs,
            .inputs = outputs == 0 ? 0 : weight.numel() / outputs,
            .dims = weight.dim(),
            .layout = layout};
  std::ranges::copy(weight.sizes(), head.sizes.begin());
  std::ranges::copy(weight.strides(), head.strides.begin());
  return head;
}

const Head& head_in(const at::Tensor& copy) {
  return *reinterpret_cast<const Head*>(copy.const_data_ptr());
}

kernels::Int8Weight shape_of(const Head& head) {
  return {nullptr, nullptr, static_cast<std::size_t>(head.outputs),
          static_cast<std::size_t>(head.inputs)};
}

// The scales come before the numbers, whole lines of them.
std::size_t scales_bytes(const kernels::Int8Weight& weight) {
  return weight.panels() * kernels::Int8Weight::kPanel * sizeof(float);
}

}  // namespace

bool may_be_int8(const at::Tensor& weight, Layout layout) {
  const DType dtype = dtype_of(weight);
  const std::int64_t dims = weight.dim();
  return (dtype == DType::Float32 || may_be_low(dtype)) && weight.layout() == at::kStrided &&
         (dims == 2 || (layout == Layout::Int8 && dims > 2 && dims <= kMostDims));
}

at::Tensor rounded_to_int8(const at::Tensor& weight, Layout layout) {
  check_storage(weight);
  const Head head = head_of(weight, layout);
  const kernels::Int8Weight shape = shape_of(head);
  // Rows of float32, one after the other; of a matrix the kernel reads any strides.
  at::Tensor wide = number_dtype(weight) == DType::Float32
                        ? weight.detach()
                        : cast_numbers(weight, DType::Float32, {}, Lifetime::Once);
  if (wide.dim() > 2) wide = wide.contiguous().view({head.outputs, head.inputs});
  const bool turned = layout == Layout::Int8Turned;
  const std::size_t scales = scales_bytes(shape);
  at::Tensor copy = at::empty({static_cast<std::int64_t>(sizeof head + scales + shape.size())},
                              at::TensorOptions(at::kByte));
  auto* memory = static_cast<std::byte*>(copy.mutable_data_ptr());
  std::memcpy(memory, &head, sizeof head);
  const auto* numbers = static_cast<const float*>(wide.const_data_ptr());
  const std::int64_t grain = std::max<std::int64_t>(
      1, kGrain / std::max<std::int64_t>(1, head.inputs * static_cast<std::int64_t>(shape.kPanel)));
  in_parallel(0, static_cast<std::int64_t>(shape.panels()), grain,
              [&](std::int64_t first, std::int64_t last) {
                kernels::pack_int8(
                    numbers, wide.stride(turned ? 1 : 0), wide.stride(turned ? 0 : 1),
                    reinterpret_cast<std::int8_t*>(memory + sizeof head + scales),
                    reinterpret_cast<float*>(memory + sizeof head), shape.outputs, shape.inputs,
                    static_cast<std::size_t>(first), static_cast<std::size_t>(last));
              });
  return copy;
}

bool is_int8_of(const at::Tensor& copy, Layout layout, const at::Tensor& weight) {
  if (copy.scalar_type() != at::kByte || weight.dim() > kMostDims) return false;
  const Head &head = head_in(copy), now = head_of(weight, layout);
  return head.layout == layout && head.sizes == now.sizes && head.strides == now.strides;
}

kernels::Int8Weight int8_memory(const at::Tensor& copy) {
  const Head& head = head_in(copy);
  kernels::Int8Weight weight = shape_of(head);
  const auto* behind = static_cast<const std::byte*>(copy.const_data_ptr()) + sizeof head;
  weight.scales = reinterpret_cast<const float*>(behind);
  weight.data = reinterpret_cast<const std::int8_t*>(behind + scales_bytes(weight));
  return weight;
}

at::Tensor dequantized(const at::Tensor& copy) {
  const Head& head = head_in(copy);
  const kernels::Int8Weight weight = int8_memory(copy);
  const auto outputs = static_cast<std::int64_t>(weight.outputs);
  const auto inputs = static_cast<std::int64_t>(weight.inputs);
  const at::Tensor rows = at::empty({outputs, inputs}, at::TensorOptions(at::kFloat));
  auto* numbers = static_cast<float*>(rows.mutable_data_ptr());
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, inputs));
  in_parallel(0, outputs, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      kernels::dequantize_output(weight, static_cast<std::size_t>(i), numbers + i * inputs);
    }
  });
  const auto dims = static_cast<std::size_t>(head.dims);
  return head.layout == Layout::Int8Turned ? rows.t()
                                           : rows.view(at::IntArrayRef(head.sizes).slice(0, dims));
}

}  // namespace habana_mp
