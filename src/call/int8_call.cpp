#include "call/int8_call.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/torch_private.h"
#include "call/cast_argument.h"
#include "call/int8_product.h"
#include "cast/dtypes.h"
#include "cast/node.h"
#include "cast/numbers.h"
#include "listen/watched_call.h"
#include "scope/regions.h"
#include "weights/int8_weight.h"
#include "weights/weight.h"

namespace habana_mp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The weight in 8 bits, of the cache where it takes it. Passed on to the listeners as a cast.
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
  if (observer != nullptr) {
    observer->casts(
        weight, copy,
        {dtype_of(weight), DType::Int8, was_cached, copy.nbytes(), start, now_ns() - start});
  }
  return copy;
}

// What a call computes with, beside what autograd sees of it.
struct ProductForm {
  Layout layout;
  at::ScalarType result;  // the low dtype, or float32
  bool activations;
  at::Tensor copy;  // of the weight
};

// For profilers, which see no op of these names otherwise. Listeners take what is inside of one for
// the work of another op.
at::Tensor product_of(const at::Tensor& input, const at::Tensor& bias, const ProductForm& form) {
  RECORD_FUNCTION("habana_mp::int8_product", c10::ArrayRef<const c10::IValue>{});
  return int8_rows(input.contiguous(), int8_memory(form.copy), bias, form.activations, form.result);
}

at::Tensor convolution_of(const at::Tensor& images, at::IntArrayRef weight_sizes,
                          const at::Tensor& bias, const Int8Windows& windows,
                          const ProductForm& form) {
  RECORD_FUNCTION("habana_mp::int8_convolution", c10::ArrayRef<const c10::IValue>{});
  return int8_windows(images, int8_memory(form.copy), weight_sizes, bias, windows, form.activations,
                      form.result);
}

// What a node has saved. Before a guard: activation checkpointing recomputes the forward pass here.
variable_list saved_in(const AutogradContext* context) { return context->get_saved_variables(); }

using OptionalTensor = std::optional<at::Tensor>;  // no argument of autograd's where it is none

// The gradient of the input is by the copy that the product had, whatever becomes of the weight:
// nobody writes to one.
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const OptionalTensor& bias, const ProductForm& form) {
    context->save_for_backward({form.copy});
    context->saved_data["turned"] = form.layout == Layout::Int8Turned;
    context->saved_data["bias"] = bias.has_value();
    const at::AutoDispatchBelowAutograd below;
    return product_of(input, bias.value_or(at::Tensor()), form);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor copy = saved_in(context)[0];
    const c10::impl::ExcludeDispatchKeyGuard uncast(autocast::kAllKeys);
    at::Tensor gradient = gradients[0], of_input, of_bias;
    if (!gradient.defined()) return {of_input, of_bias, {}};
    if (context->needs_input_grad(0)) {
      const at::Tensor numbers = dequantized(copy).to(gradient.scalar_type());
      const bool turned = context->saved_data["turned"].toBool();
      of_input = at::matmul(gradient, turned ? numbers.t() : numbers);
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(1)) {
      of_bias = gradient.reshape({-1, gradient.size(-1)}).sum(0, false, at::kFloat);
    }
    return {of_input, of_bias, {}};
  }
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && is_ordinary(tensor);
}

bool are_of(const Int8Operands& call) {
  return may_be_cast(dtype_of(call.input)) &&
         (!call.bias.defined() || (may_be_cast(dtype_of(call.bias)) && is_plain(call.bias)));
}

at::Tensor low(const at::Tensor& tensor, DType to, bool contiguous) {
  if (number_dtype(tensor) == to) return tensor;
  return cast_argument(tensor, to, {.cached = true, .contiguous = contiguous});
}

// A bias is added in float32, from the numbers that it has.
at::Tensor wide(const at::Tensor& bias) { return bias.defined() ? bias.to(at::kFloat) : bias; }

OptionalTensor some(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

struct Convolved : torch::autograd::Function<Convolved> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const OptionalTensor& bias, at::IntArrayRef weight_sizes,
                            const Int8Windows& windows, const ProductForm& form) {
    context->save_for_backward({input, form.copy});
    const auto save = [&](const char* name, at::IntArrayRef numbers) {
      context->saved_data[name] = c10::IValue(numbers);
    };
    save("stride", windows.stride);
    save("before", windows.before);
    save("after", windows.after);
    save("dilation", windows.dilation);
    context->saved_data["groups"] = windows.groups;
    context->saved_data["bias"] = bias.has_value();
    const at::AutoDispatchBelowAutograd below;
    return convolution_of(input, weight_sizes, bias.value_or(at::Tensor()), windows, form);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = saved_in(context);
    const c10::impl::ExcludeDispatchKeyGuard uncast(autocast::kAllKeys);
    const auto numbers = [&](const char* name) { return context->saved_data[name].toDimVector(); };
    at::Tensor gradient = gradients[0], of_input, of_bias;
    if (!gradient.defined()) return {of_input, of_bias, {}, {}, {}};
    const at::DimVector before = numbers("before"), after = numbers("after");
    if (context->needs_input_grad(0)) {
      // By torch, of an input that is padded as the windows had it.
      at::DimVector pads;
      for (std::size_t i = before.size(); i-- > 0;) {
        pads.push_back(before[i]);
        pads.push_back(after[i]);
      }
      const at::Tensor padded = at::constant_pad_nd(saved[0], pads, 0);
      const at::DimVector none(before.size(), 0);
      const at::Tensor of_padded = std::get<0>(at::convolution_backward(
          gradient, padded, dequantized(saved[1]).to(gradient.scalar_type()), std::nullopt,
          numbers("stride"), none, numbers("dilation"), false, none,
          context->saved_data["groups"].toInt(), {true, false, false}));
      of_input = of_padded;
      for (std::size_t i = 0; i < before.size(); ++i) {
        const auto dim = static_cast<std::int64_t>(i) + 2;
        of_input = of_input.narrow(dim, before[i], saved[0].size(dim));
      }
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(1)) {
      at::DimVector others{0};
      for (std::int64_t i = 2; i < gradient.dim(); ++i) others.push_back(i);
      of_bias = gradient.sum(others, false, at::kFloat);
    }
    return {of_input, of_bias, {}, {}, {}};
  }
};

// One number for each dimension; none where there are others, or such as torch refuses.
std::optional<at::DimVector> numbers_for(at::IntArrayRef given, std::size_t dims,
                                         std::int64_t least) {
  if (given.size() != 1 && given.size() != dims) return std::nullopt;
  at::DimVector all(dims, given[0]);
  if (given.size() == dims) std::ranges::copy(given, all.begin());
  if (std::ranges::any_of(all, [&](std::int64_t each) { return each < least; }))
    return std::nullopt;
  return all;
}

std::optional<Int8Windows> windows_of(const at::Tensor& weight, const Int8Convolution& numbers) {
  const auto dims = static_cast<std::size_t>(weight.dim() - 2);
  const auto stride = numbers_for(numbers.stride, dims, 1);
  const auto dilation = numbers_for(numbers.dilation, dims, 1);
  auto before = numbers.same ? at::DimVector(dims, 0) : numbers_for(numbers.padding, dims, 0);
  if (!stride || !dilation || !before || numbers.groups < 1) return std::nullopt;
  at::DimVector after = *before;
  for (std::size_t i = 0; numbers.same && i < dims; ++i) {
    if ((*stride)[i] != 1) return std::nullopt;
    const std::int64_t both = (*dilation)[i] * (weight.size(static_cast<std::int64_t>(i) + 2) - 1);
    (*before)[i] = both / 2;
    after[i] = both - both / 2;
  }
  return Int8Windows{*stride, *before, after, *dilation, numbers.groups};
}

bool fits(const at::Tensor& images, const at::Tensor& weight, const Int8Windows& windows) {
  if (images.dim() != weight.dim() || images.size(1) != weight.size(1) * windows.groups ||
      weight.size(0) % windows.groups != 0 || images.numel() == 0 || weight.numel() == 0) {
    return false;
  }
  for (std::int64_t i = 2; i < images.dim(); ++i) {
    const auto at = static_cast<std::size_t>(i - 2);
    const std::int64_t reach = windows.dilation[at] * (weight.size(i) - 1) + 1;
    if (images.size(i) + windows.before[at] + windows.after[at] < reach) return false;
  }
  return true;
}

}  // namespace

Int8Op int8_op(std::string_view overload) {
  if (overload == "linear") return Int8Op::Linear;
  if (overload == "addmm") return Int8Op::Addmm;
  if (overload == "mm") return Int8Op::Mm;
  if (overload == "matmul") return Int8Op::Matmul;
  if (overload == "embedding") return Int8Op::Embedding;
  const std::string_view base = overload.substr(0, overload.find('.'));
  const bool convolves = base == "conv1d" || base == "conv2d" || base == "conv3d";
  return convolves && (base == overload || overload.ends_with(".padding")) ? Int8Op::Convolution
                                                                           : Int8Op::None;
}

bool has_int8_weight(Int8Op op, const at::Tensor& weight, bool traced) {
  if (op == Int8Op::None || !weight.defined() || records_graph(weight)) return false;
  if (!may_be_int8(weight, int8_layout(op))) return false;
  return traced || is_model_weight(weight);
}

bool has_int8_kernel(const at::Tensor& input, const at::Tensor& weight) {
  return is_plain(input) && is_plain(weight);
}

at::Tensor int8_product(Layout layout, const Int8Operands& call, const at::Scalar& beta,
                        const at::Scalar& alpha) {
  const auto& [input, weight, bias, to, activations, caller, known] = call;
  const bool turned = layout == Layout::Int8Turned;
  if (!are_of(call) || weight.dim() != 2 || input.dim() == 0) return {};
  const std::int64_t outputs = weight.size(turned ? 1 : 0), inputs = weight.size(turned ? 0 : 1);
  at::DimVector sizes(input.sizes());
  if (std::exchange(sizes.back(), outputs) != inputs ||
      (bias.defined() && !at::is_expandable_to(bias.sizes(), sizes))) {
    return {};
  }
  const c10::impl::ExcludeDispatchKeyGuard uncast(autocast::kAllKeys);
  const bool plain = beta.equal(1) && alpha.equal(1) &&
                     (!bias.defined() || (bias.dim() == 1 && bias.size(0) == outputs));
  const at::ScalarType result_type = plain ? scalar_type(to) : at::kFloat;
  const ProductForm form{layout, result_type, activations,
                         int8_copy(weight, layout, caller, known)};
  const at::Tensor x = low(input, to, /*contiguous=*/true),
                   added = plain ? wide(bias) : at::Tensor();
  const bool recorded = records_graph(x) || (added.defined() && records_graph(added));
  at::Tensor result = recorded ? Product::apply(x, some(added), form) : product_of(x, added, form);
  if (plain) return result;
  if (!alpha.equal(1)) result = result * alpha;
  if (bias.defined() && !beta.equal(0)) result = result + wide(bias) * beta;
  return result.to(scalar_type(to));
}

at::Tensor int8_convolution(const Int8Operands& call, const Int8Convolution& numbers) {
  const auto& [input, weight, bias, to, activations, caller, known] = call;
  if (!are_of(call) || weight.dim() < 3 || weight.dim() > 5) return {};
  const auto windows = windows_of(weight, numbers);
  const bool batched = input.dim() == weight.dim();
  if (!windows || (!batched && input.dim() + 1 != weight.dim())) return {};
  const at::Tensor images = batched ? input : input.unsqueeze(0);
  if (!fits(images, weight, *windows) ||
      (bias.defined() && (bias.dim() != 1 || bias.size(0) != weight.size(0)))) {
    return {};
  }
  const c10::impl::ExcludeDispatchKeyGuard uncast(autocast::kAllKeys);
  const ProductForm form{Layout::Int8, scalar_type(to), activations,
                         int8_copy(weight, Layout::Int8, caller, known)};
  const at::Tensor x = low(images, to, /*contiguous=*/false), added = wide(bias);
  at::Tensor result;
  if (records_graph(x) || (added.defined() && records_graph(added))) {
    result = Convolved::apply(x, some(added), weight.sizes(), *windows, form);
  } else {
    result = convolution_of(x, weight.sizes(), added, *windows, form);
  }
  return batched ? result : result.squeeze(0);
}

at::Tensor int8_embedding(const Int8Operands& call) {
  const auto& [indices, weight, bias, to, activations, caller, known] = call;
  const bool whole = indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt;
  if (!whole || weight.dim() != 2) return {};
  const at::Tensor rows = indices.to(at::kLong).contiguous();
  const at::Tensor copy = int8_copy(weight, Layout::Int8, caller, known);
  RECORD_FUNCTION("habana_mp::int8_embedding", c10::ArrayRef<const c10::IValue>{});
  return int8_lookup(rows, int8_memory(copy), scalar_type(to));
}

at::Tensor int8_result(Int8Op op, const Int8Operands& call, c10::ArrayRef<c10::IValue> arguments) {
  switch (op) {
    case Int8Op::Linear:
    case Int8Op::Matmul:
      return int8_product(int8_layout(op), call);
    case Int8Op::Mm:  // of matrices alone, as the next
      return call.input.dim() == 2 ? int8_product(int8_layout(op), call) : at::Tensor();
    case Int8Op::Addmm:
      if (call.input.dim() != 2) return {};
      return int8_product(int8_layout(op), call, arguments[3].toScalar(), arguments[4].toScalar());
    case Int8Op::Embedding:
      return int8_embedding(call);
    case Int8Op::Convolution:
      break;
    case Int8Op::None:
      return {};
  }
  const bool named = arguments[4].isString();
  if (!arguments[3].isIntList() || !arguments[5].isIntList() || !arguments[6].isInt()) return {};
  if (!named && !arguments[4].isIntList()) return {};
  const bool same = named && arguments[4].toStringRef() == "same";
  if (named && !same && arguments[4].toStringRef() != "valid") return {};
  const auto stride = arguments[3].toDimVector(), dilation = arguments[5].toDimVector();
  const auto padding = named ? at::DimVector{0} : arguments[4].toDimVector();
  return int8_convolution(call, {stride, padding, dilation, arguments[6].toInt(), same});
}

at::Tensor rounded_by_torch(const at::Tensor& tensor, at::IntArrayRef dims) {
  const at::Tensor numbers = tensor.to(at::kFloat);
  if (TORCH_GUARD_OR_FALSE(numbers.sym_numel().sym_eq(0))) return numbers;
  at::Tensor scale = numbers.abs().amax(dims, /*keepdim=*/true) / 127.0;
  // As the kernels: what is not finite makes all of it NaN, and what is tiny is zero.
  scale = at::where(scale.isfinite(), scale, std::numeric_limits<float>::quiet_NaN());
  const at::Tensor tiny = scale < static_cast<double>(std::numeric_limits<float>::min());
  const at::Tensor rounded = (numbers / scale).round().clamp(-127, 127) * scale;
  return at::where(tiny, 0.0, rounded).to(at::kFloat);
}

}  // namespace habana_mp
