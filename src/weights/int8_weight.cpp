#include "weights/int8_weight.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cast/dtypes.h"
#include "cast/numbers.h"
#include "cast/parallel.h"
#include "cast/storage_check.h"

namespace habana_mp {
namespace {

constexpr std::int64_t kMostDims = 5;

// At the beginning of a copy. A line of the cache, as what follows is read in such.
struct alignas(64) Head {
  std::int64_t matrices, outputs, inputs;
  std::array<std::int64_t, kMostDims> sizes{}, strides{};
  std::int64_t dims;
  Layout layout;
};

Head head_of(const at::Tensor& weight, Layout layout) {
  const bool turned = layout == Layout::Int8Turned;
  const std::int64_t outputs = weight.size(turned ? -1 : 0);
  const std::int64_t own = outputs == 0 ? 0 : weight.numel() / outputs;
  Head head{.matrices = turned && weight.dim() == 3 ? weight.size(0) : 1,
            .outputs = outputs,
            .inputs = turned ? weight.size(-2) : own,
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

std::size_t bytes_of(const kernels::Int8Weight& weight) {
  return scales_bytes(weight) + weight.size();
}

}  // namespace

bool may_be_int8(const at::Tensor& weight, Layout layout) {
  const DType dtype = dtype_of(weight);
  const std::int64_t dims = weight.dim();
  return (dtype == DType::Float32 || may_be_low(dtype)) && weight.layout() == at::kStrided &&
         dims >= 2 && dims <= (layout == Layout::Int8 ? kMostDims : 3);
}

at::Tensor rounded_to_int8(const at::Tensor& weight, Layout layout) {
  check_storage(weight);
  const Head head = head_of(weight, layout);
  const kernels::Int8Weight shape = shape_of(head);
  // Rows of float32, one after the other; of a matrix the kernel reads any strides.
  at::Tensor wide = number_dtype(weight) == DType::Float32
                        ? weight.detach()
                        : cast_numbers(weight, DType::Float32, {}, Lifetime::Once);
  const bool turned = layout == Layout::Int8Turned;
  // Of a convolution the channels come last, as in a window of images that lie so.
  if (wide.dim() > 2 && !turned)
    wide = wide.movedim(1, -1).contiguous().view({head.outputs, head.inputs});
  const std::size_t scales = scales_bytes(shape);
  const std::int64_t matrices = head.matrices;
  const auto bytes =
      static_cast<std::int64_t>(bytes_of(shape)) * std::max<std::int64_t>(1, matrices);
  at::Tensor copy =
      at::empty({static_cast<std::int64_t>(sizeof head) + bytes}, at::TensorOptions(at::kByte));
  auto* memory = static_cast<std::byte*>(copy.mutable_data_ptr());
  std::memcpy(memory, &head, sizeof head);
  const auto* numbers = static_cast<const float*>(wide.const_data_ptr());
  const std::int64_t grain = std::max<std::int64_t>(
      1, kGrain / std::max<std::int64_t>(1, head.inputs * static_cast<std::int64_t>(shape.kPanel)));
  memory += sizeof head;
  for (std::int64_t i = 0; i < matrices; ++i, memory += bytes_of(shape)) {
    const float* matrix = matrices == 1 ? numbers : numbers + i * wide.stride(0);
    in_parallel(0, static_cast<std::int64_t>(shape.panels()), grain,
                [&](std::int64_t first, std::int64_t last) {
                  kernels::pack_int8(
                      matrix, wide.stride(turned ? -1 : -2), wide.stride(turned ? -2 : -1),
                      reinterpret_cast<std::int8_t*>(memory + scales),
                      reinterpret_cast<float*>(memory), shape.outputs, shape.inputs,
                      static_cast<std::size_t>(first), static_cast<std::size_t>(last));
                });
  }
  return copy;
}

bool is_int8_of(const at::Tensor& copy, Layout layout, const at::Tensor& weight) {
  if (copy.scalar_type() != at::kByte || weight.dim() > kMostDims) return false;
  const Head &head = head_in(copy), now = head_of(weight, layout);
  return head.layout == layout && head.sizes == now.sizes && head.strides == now.strides;
}

Int8Weights int8_memory(const at::Tensor& copy) {
  const Head& head = head_in(copy);
  const kernels::Int8Weight shape = shape_of(head);
  const auto* memory = static_cast<const std::byte*>(copy.const_data_ptr()) + sizeof head;
  Int8Weights weights(static_cast<std::size_t>(std::max<std::int64_t>(1, head.matrices)), shape);
  for (kernels::Int8Weight& weight : weights) {
    weight.scales = reinterpret_cast<const float*>(memory);
    weight.data = reinterpret_cast<const std::int8_t*>(memory + scales_bytes(shape));
    memory += bytes_of(shape);
  }
  return weights;
}

at::Tensor dequantized(const at::Tensor& copy) {
  const Head& head = head_in(copy);
  const Int8Weights weights = int8_memory(copy);
  const std::int64_t inputs = head.inputs, outputs = head.outputs;
  const at::Tensor rows =
      at::empty({head.matrices * outputs, inputs}, at::TensorOptions(at::kFloat));
  auto* numbers = static_cast<float*>(rows.mutable_data_ptr());
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, inputs));
  in_parallel(0, rows.size(0), grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      kernels::dequantize_output(weights[static_cast<std::size_t>(i / outputs)],
                                 static_cast<std::size_t>(i % outputs), numbers + i * inputs);
    }
  });
  at::DimVector sizes(head.sizes.begin(), head.sizes.begin() + head.dims);
  if (head.layout != Layout::Int8Turned) {
    std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
    // A copy always: of one channel the strides would look like those of channels last.
    return rows.view(sizes).movedim(-1, 1).clone(at::MemoryFormat::Contiguous);
  }
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  return rows.view(sizes).mT();
}

}  // namespace habana_mp
