#include "call/packed_call.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <optional>

#include "call/cast_argument.h"
#include "cast/dtypes.h"
#include "scope/regions.h"

namespace habana_mp {
namespace {

// Whether the input lies row after row when it is low. torch computes others in another way.
bool will_be_contiguous(const at::Tensor& input, DType to) {
  return input.is_contiguous() || (number_dtype(input) != to && copied_by_matmul(input));
}

// torch gives oneDNN products of more multiplications than this, and computes others itself: with
// other sums, and with subnormals, which oneDNN takes for zeros where it has AVX-512 BF16.
constexpr std::int64_t kMostOfTorch = 16 * 16 * 16;

// Whether oneDNN computes the product of the plain weight as that of the packed one. For a single
// output it has another way, which takes other subnormals for zeros.
bool is_for_onednn(std::int64_t rows, std::int64_t inputs, std::int64_t outputs) {
  return outputs > 1 && rows * inputs > kMostOfTorch / outputs;
}

// The shape of a product that a packed weight may serve, as far as sizes and strides say.
std::optional<Shape> shape_of(Layout layout, const PackedOperands& call) {
  const auto& [input, weight, bias, to, caller] = call;
  if (weight.dim() != 2 || !weight.is_contiguous()) return std::nullopt;
  const bool turned = layout == Layout::Addmm;
  const std::int64_t outputs = weight.size(turned ? 1 : 0);
  const std::int64_t inputs = weight.size(turned ? 0 : 1);
  if (input.dim() == 0 || input.size(-1) != inputs) return std::nullopt;
  if (turned && (input.dim() != 2 || !bias.defined())) return std::nullopt;
  if (!is_bias_of(bias, outputs, to) || !will_be_contiguous(input, to) || !onednn_packs(to) ||
      !is_for_onednn(input.numel() / inputs, inputs, outputs)) {
    return std::nullopt;
  }
  return Shape{.layout = layout,
               .to = to,
               .rows = input.numel() / inputs,
               .inputs = inputs,
               .outputs = outputs,
               .bias = bias.defined(),
               .threads = at::get_num_threads()};
}

// One number for each dimension of an image; none where there are others, or such that torch
// refuses them or sums of them overflow.
std::optional<Spatial> spatial(at::IntArrayRef given, std::size_t dims, std::int64_t least) {
  if (given.size() != 1 && given.size() != dims) return std::nullopt;
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  Spatial result{};
  for (std::size_t i = 0; i < dims; ++i) result[i] = given[given.size() == 1 ? 0 : i];
  if (std::any_of(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(dims),
                  [&](std::int64_t number) { return number < least || number > kMost; })) {
    return std::nullopt;
  }
  return result;
}

bool kernel_fits(const at::Tensor& images, const at::Tensor& weight, const Convolution& of) {
  for (std::int64_t i = 2; i < images.dim(); ++i) {
    const auto at = static_cast<std::size_t>(i - 2);
    const std::int64_t reach = of.dilation[at] * (weight.size(i) - 1) + 1;
    if (images.size(i) + 2 * of.padding[at] < reach) return false;
  }
  return true;
}

// Whether torch computes the convolution with channels last, and its result lies so.
bool computed_channels_last(const at::Tensor& images, const at::Tensor& weight) {
  const auto last =
      images.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  return images.is_non_overlapping_and_dense() &&
         (images.suggest_memory_format() == last || weight.suggest_memory_format() == last);
}

// The same of a convolution. What torch refuses has none.
std::optional<ConvolutionShape> shape_of(const PackedOperands& call,
                                         const torch_private::ConvolutionNumbers& numbers) {
  const auto& [input, weight, bias, to, caller] = call;
  const std::int64_t dims = weight.dim();
  if ((dims != 4 && dims != 5) || input.dim() != dims) return std::nullopt;
  const auto inner = static_cast<std::size_t>(dims - 2);
  const auto stride = spatial(numbers.stride, inner, 1);
  const auto padding = spatial(numbers.padding, inner, 0);
  const auto dilation = spatial(numbers.dilation, inner, 1);
  const std::int64_t groups = numbers.groups;
  if (!stride || !padding || !dilation || groups < 1) return std::nullopt;
  const bool weight_lies_last = !weight.is_contiguous();
  if (weight_lies_last && !channels_come_last(weight)) return std::nullopt;
  ConvolutionShape shape{
      .form = {Layout::Convolution, {*stride, *padding, *dilation, groups}, weight_lies_last},
      .to = to,
      .images = {},
      .weight = {},
      .bias = bias.defined(),
      .threads = at::get_num_threads()};
  if (weight.size(1) * groups != input.size(1) || weight.size(0) % groups != 0 ||
      !kernel_fits(input, weight, shape.form.convolution) ||
      !is_bias_of(bias, weight.size(0), to)) {
    return std::nullopt;
  }
  if (!computed_channels_last(input, weight) || !onednn_packs(to)) return std::nullopt;
  std::ranges::copy(input.sizes(), shape.images.begin());
  std::ranges::copy(weight.sizes(), shape.weight.begin());
  return shape;
}

// For profilers, which see no op of this name otherwise.
constexpr const char* kProduct = "habana_mp::packed_product";
constexpr const char* kConvolution = "habana_mp::packed_convolution";

}  // namespace

bool may_be_recast(std::string_view op, DType to) {
  using namespace autocast;
  constexpr auto kCpu = static_cast<std::size_t>(std::ranges::find(kDevices, c10::DeviceType::CPU) -
                                                 kDevices.begin());
  const c10::DispatchKeySet excluded = excluded_here();
  if (!is_on(kCpu, excluded)) return false;
  const Ruling here = ruling_here(kCpu, excluded);
  switch (here.ruler) {
    case Ruler::Nobody:
      return false;
    case Ruler::Torch:  // whose list has all of them
      return at::autocast::get_autocast_dtype(c10::DeviceType::CPU) != scalar_type(to);
    case Ruler::Ours:
      break;
  }
  if (here.scope->rules->of_conversion) return false;
  const Rule rule = here.scope->rules->policy->resolve_overload(op).rule;
  return !is_lower(rule.action) || rule.low != to;
}

Layout packed_layout(std::string_view op) {
  if (op == "linear") return Layout::Linear;
  if (op == "addmm") return Layout::Addmm;
  return op == "conv2d" || op == "conv3d" ? Layout::Convolution : Layout::Plain;
}

at::Tensor packed_product(Layout layout, const PackedOperands& call) {
  if (!may_be_packed(call)) return {};
  const auto shape = shape_of(layout, call);
  if (!shape) return {};
  const c10::impl::ExcludeDispatchKeyGuard no_casts(autocast::kAllKeys);
  const By way = chosen(*shape);
  if (way == By::PlainCopy) return {};
  const PackedArguments given = packed_arguments(call, {layout}, /*contiguous=*/true);
  if (!given) return {};
  RECORD_FUNCTION(kProduct, c10::ArrayRef<const c10::IValue>{});
  return product(way, layout, given.input, given.weight, given.bias);
}

at::Tensor packed_convolution(const PackedOperands& call,
                              const torch_private::ConvolutionNumbers& numbers) {
  if (!may_be_packed(call)) return {};
  const auto shape = shape_of(call, numbers);
  if (!shape) return {};
  const c10::impl::ExcludeDispatchKeyGuard no_casts(autocast::kAllKeys);
  if (chosen(*shape) == By::PlainCopy) return {};
  const PackedArguments given =
      packed_arguments(call, shape->form, /*contiguous=*/false, call.input.sizes());
  if (!given) return {};
  RECORD_FUNCTION(kConvolution, c10::ArrayRef<const c10::IValue>{});
  return onednn_convolution(given.input, given.weight.copy, given.bias, shape->form.convolution);
}

Prepared prepared_product(Layout layout, const PackedOperands& low) {
  const auto shape = shape_of(layout, low);
  const By way = shape ? chosen(*shape) : By::PlainCopy;
  if (way == By::PlainCopy) return {};
  WeightCache::Packed packed{pack(low.weight, {layout})};
  packed.data = torch_private::packed_data(packed.copy);
  return
      [=, input = low.input, bias = low.bias] { return product(way, layout, input, packed, bias); };
}

Prepared prepared_convolution(const PackedOperands& low,
                              const torch_private::ConvolutionNumbers& numbers) {
  const auto shape = shape_of(low, numbers);
  if (!shape || chosen(*shape) == By::PlainCopy) return {};
  const at::Tensor packed = pack(low.weight, shape->form, low.input.sizes());
  return [=, input = low.input, bias = low.bias] {
    return onednn_convolution(input, packed, bias, shape->form.convolution);
  };
}

}  // namespace habana_mp
