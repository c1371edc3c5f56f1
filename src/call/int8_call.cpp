#include "call/int8_call.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/torch_private.h"
#include "call/cast_argument.h"
#include "call/int8_gradients.h"
#include "call/int8_product.h"
#include "cast/dtypes.h"
#include "cast/node.h"
#include "cast/numbers.h"
#include "listen/hears.h"
#include "scope/regions.h"
#include "weights/int8_weight.h"
#include "weights/weight.h"

namespace habana_mp {
namespace {

// What a call computes with, beside what autograd sees of it.
struct ProductForm {
  at::ScalarType result;  // the low dtype, or float32
  Int8Activations activations;
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
  return int8_windows(images, int8_memory(form.copy).front(), weight_sizes, bias, windows,
                      form.activations, form.result);
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && is_ordinary(tensor);
}

bool are_of(const Int8Operands& call) {
  return may_be_cast(dtype_of(call.input)) &&
         (!call.bias.defined() || (may_be_cast(dtype_of(call.bias)) && is_plain(call.bias)));
}

// The input as the kernels take it. They cast it while they round it to 8 bits, where nobody has to
// see the cast.
at::Tensor activations_of(const at::Tensor& input, const Int8Operands& call, bool contiguous) {
  const bool unseen = call.activations && number_dtype(input) == DType::Float32 &&
                      !records_graph(input) && !listen::anyone_hears(listen::Hears::Calls);
  return unseen ? input : in_dtype(input, call.to, contiguous);
}

Int8Activations rounded_by(const Int8Operands& call) {
  return call.activations ? std::optional(call.to) : std::nullopt;
}

// A bias is added in float32, from the numbers that it has.
at::Tensor wide(const at::Tensor& bias) { return bias.defined() ? bias.to(at::kFloat) : bias; }

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

// Whether the result is the product and a bias for each output, without factors.
bool is_plain_sum(const Int8Operands& call, std::int64_t outputs, const at::Scalar& beta,
                  const at::Scalar& alpha) {
  return beta.equal(1) && alpha.equal(1) &&
         (!call.bias.defined() || (call.bias.dim() == 1 && call.bias.sym_size(0) == outputs));
}

// Of the rows of a table, by whole numbers.
bool are_numbered(const Int8Operands& call) {
  const at::ScalarType dtype = call.input.scalar_type();
  return (dtype == at::kLong || dtype == at::kInt) && call.weight.dim() == 2;
}

at::DimVector all_dims_but(const at::Tensor& tensor, std::int64_t kept) {
  at::DimVector dims;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (i != kept) dims.push_back(i);
  }
  return dims;
}

// With one scale for all numbers that lie along `dims`.
at::Tensor rounded_along(const at::Tensor& tensor, at::IntArrayRef dims) {
  const at::Tensor numbers = tensor.to(at::kFloat);
  if (TORCH_GUARD_OR_FALSE(numbers.sym_numel().sym_eq(0))) return numbers;
  at::Tensor scale = numbers.abs().amax(dims, /*keepdim=*/true) / 127.0;
  // As the kernels: what is not finite makes all of it NaN, and what is tiny is zero.
  scale = at::where(scale.isfinite(), scale, std::numeric_limits<float>::quiet_NaN());
  const at::Tensor tiny = scale < static_cast<double>(std::numeric_limits<float>::min());
  const at::Tensor rounded = (numbers / scale).round().clamp(-127, 127) * scale;
  return at::where(tiny, 0.0, rounded).to(at::kFloat);
}

}  // namespace

Int8Op int8_op(std::string_view overload) {
  if (overload == "linear") return Int8Op::Linear;
  if (overload == "addmm") return Int8Op::Addmm;
  if (overload == "mm") return Int8Op::Mm;
  if (overload == "matmul") return Int8Op::Matmul;
  if (overload == "bmm") return Int8Op::Bmm;
  if (overload == "baddbmm") return Int8Op::Baddbmm;
  if (overload == "embedding") return Int8Op::Embedding;
  const std::string_view base = overload.substr(0, overload.find('.'));
  if (base == "embedding_bag") return Int8Op::EmbeddingBag;
  const bool convolves = base == "conv1d" || base == "conv2d" || base == "conv3d";
  return convolves && (base == overload || overload.ends_with(".padding")) ? Int8Op::Convolution
                                                                           : Int8Op::None;
}

bool has_int8_weight(Int8Op op, const at::Tensor& input, const at::Tensor& weight, bool traced) {
  if (op == Int8Op::None || !weight.defined() || records_graph(weight)) return false;
  if (input.layout() != at::kStrided || input.is_nested()) return false;  // without rows
  const Layout layout = int8_layout(op);
  if (!may_be_int8(weight, layout)) return false;
  if (layout == Layout::Int8Turned && (weight.dim() == 3) != is_batched(op)) return false;
  if (op == Int8Op::Convolution && TORCH_GUARD_OR_FALSE(input.sym_numel().sym_eq(0))) return false;
  return traced || is_model_weight(weight);
}

bool has_int8_kernel(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return is_plain(input) && is_plain(weight) && (!bias.defined() || is_plain(bias));
}

at::Tensor int8_product(Layout layout, const Int8Operands& call, const at::Scalar& beta,
                        const at::Scalar& alpha) {
  const auto& [input, weight, bias, to, activations, caller, known] = call;
  const bool turned = layout == Layout::Int8Turned;
  const bool batched = turned && weight.dim() == 3;
  if (!are_of(call) || (!batched && weight.dim() != 2) || input.dim() == 0) return {};
  if (batched && (input.dim() != 3 || input.size(0) != weight.size(0))) return {};
  const std::int64_t outputs = weight.size(turned ? -1 : -2);
  const std::int64_t inputs = weight.size(turned ? -2 : -1);
  at::DimVector sizes(input.sizes());
  if (std::exchange(sizes.back(), outputs) != inputs ||
      (bias.defined() && !at::is_expandable_to(bias.sizes(), sizes))) {
    return {};
  }
  const c10::impl::ExcludeDispatchKeyGuard uncast(autocast::kAllKeys);
  const bool plain = is_plain_sum(call, outputs, beta, alpha);
  const at::ScalarType result_type = plain ? scalar_type(to) : at::kFloat;
  const ProductForm form{result_type, rounded_by(call), int8_copy(weight, layout, caller, known)};
  const at::Tensor x = activations_of(input, call, /*contiguous=*/true),
                   added = plain ? wide(bias) : at::Tensor();
  const auto compute = [&] { return product_of(x, added, form); };
  const bool recorded = records_graph(x) || (added.defined() && records_graph(added));
  at::Tensor result =
      recorded ? recorded_product(x, added, {form.copy, layout, compute}) : compute();
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
  const ProductForm form{scalar_type(to), rounded_by(call),
                         int8_copy(weight, Layout::Int8, caller, known)};
  const at::Tensor x = activations_of(images, call, /*contiguous=*/false), added = wide(bias);
  const auto compute = [&] { return convolution_of(x, weight.sizes(), added, *windows, form); };
  const bool recorded = records_graph(x) || (added.defined() && records_graph(added));
  const at::Tensor result =
      recorded ? recorded_convolution(x, added, *windows, {form.copy, Layout::Int8, compute})
               : compute();
  return batched ? result : result.squeeze(0);
}

at::Tensor traced_int8_product(Layout layout, const Int8Operands& call, const WholeOp& op,
                               const at::Scalar& beta, const at::Scalar& alpha) {
  const bool turned = layout == Layout::Int8Turned;
  const Int8Forward forward{call.weight, layout, op, call.caller.has_value()};
  if (is_plain_sum(call, call.weight.size(turned ? -1 : -2), beta, alpha))
    return recorded_product(call.input, call.bias, forward);
  return recorded_product(call.input, call.bias, forward,
                          Int8Factors{alpha.toDouble(), beta.toDouble()});
}

at::Tensor traced_int8_convolution(const Int8Operands& call, const Int8Convolution& numbers,
                                   const WholeOp& op) {
  const auto windows = windows_of(call.weight, numbers);
  if (!windows) return {};
  return recorded_convolution(call.input, call.bias, *windows,
                              {call.weight, Layout::Int8, op, call.caller.has_value()});
}

at::Tensor int8_embedding(const Int8Operands& call) {
  const auto& [indices, weight, bias, to, activations, caller, known] = call;
  if (!are_numbered(call)) return {};
  const at::Tensor rows = indices.to(at::kLong).contiguous();
  const at::Tensor copy = int8_copy(weight, Layout::Int8, caller, known);
  RECORD_FUNCTION("habana_mp::int8_embedding", c10::ArrayRef<const c10::IValue>{});
  return int8_lookup(rows, int8_memory(copy).front(), scalar_type(to));
}

std::optional<BagResults> int8_embedding_bag(const Int8Operands& call, const Int8Bags& bags) {
  const auto& [indices, weight, factors, to, activations, caller, known] = call;
  if (indices.dim() != 1 || !bags.offsets.defined() || !are_numbered(call)) return std::nullopt;
  const c10::impl::ExcludeDispatchKeyGuard uncast(autocast::kAllKeys);
  // What the bags have is looked up once, whatever the size of the table; the padding, too, as
  // torch has other kernels where there is one.
  at::Tensor wanted = indices.to(at::kLong);
  if (bags.padding_index) {
    const std::int64_t row = *bags.padding_index;
    wanted =
        at::cat({wanted, at::full({1}, row < 0 ? row + weight.size(0) : row, wanted.options())});
  }
  auto [rows, places, counts] = at::_unique2(wanted, /*sorted=*/true, /*return_inverse=*/true);
  std::optional<std::int64_t> padding;
  if (bags.padding_index) padding = places[-1].item<std::int64_t>();
  places = places.narrow(0, 0, indices.size(0));
  const at::Tensor looked_up = int8_embedding({rows, weight, {}, to, false, caller, known});
  constexpr std::int64_t kMax = 2;
  BagResults results = at::embedding_bag(
      looked_up, places, bags.offsets, bags.scale_grad_by_freq, bags.mode, bags.sparse,
      factors.defined() ? std::optional(in_dtype(factors, to, /*contiguous=*/false)) : std::nullopt,
      bags.include_last_offset, padding);
  at::Tensor& largest = std::get<3>(results);
  if (bags.mode == kMax && rows.numel() > 0) largest = rows.take(largest);
  return results;
}

at::Tensor int8_result(Int8Op op, const Int8Operands& call, c10::ArrayRef<c10::IValue> arguments) {
  switch (op) {
    case Int8Op::Linear:
    case Int8Op::Matmul:
      return int8_product(int8_layout(op), call);
    case Int8Op::Mm:  // of matrices alone, as the others
    case Int8Op::Bmm:
      if (call.input.dim() != call.weight.dim()) return {};
      return int8_product(int8_layout(op), call);
    case Int8Op::Addmm:
    case Int8Op::Baddbmm:
      if (call.input.dim() != call.weight.dim()) return {};
      return int8_product(int8_layout(op), call, arguments[3].toScalar(), arguments[4].toScalar());
    case Int8Op::Embedding:
      return int8_embedding(call);
    case Int8Op::Convolution:
      break;
    case Int8Op::EmbeddingBag:
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

at::Tensor rounded_weight(Int8Op op, const at::Tensor& weight) {
  const bool turned = int8_layout(op) == Layout::Int8Turned;
  return rounded_along(weight, turned ? at::DimVector{-2} : all_dims_but(weight, 0));
}

at::Tensor rounded_activations(Int8Op op, const at::Tensor& low, std::int64_t weight_dims) {
  if (low.dim() == 0) return low;
  const at::Tensor known = low.detach();
  const std::int64_t image = low.dim() == weight_dims ? 0 : -1;
  const bool images = op == Int8Op::Convolution;
  return rounded_along(known, images ? all_dims_but(low, image) : at::DimVector{-1}) +
         (low - known);
}

}  // namespace habana_mp
