#include "call/int8_gradients.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cast/numbers.h"
#include "scope/state.h"
#include "weights/int8_weight.h"

namespace habana_mp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;  // no argument of autograd's where it is none
using Uncast = c10::impl::ExcludeDispatchKeyGuard;

OptionalTensor some(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// What a node has saved. Before a guard: activation checkpointing recomputes the forward pass here.
variable_list saved_in(const AutogradContext* context) { return context->get_saved_variables(); }

void save(AutogradContext* context, const Int8Forward& forward, const OptionalTensor& bias) {
  context->saved_data["turned"] = forward.layout == Layout::Int8Turned;
  context->saved_data["cached"] = forward.cached;
  if (bias) context->saved_data["bias"] = bias->sym_sizes();
}

bool needs_bias(AutogradContext* context) {
  return context->saved_data.count("bias") != 0 && context->needs_input_grad(1);
}

// The numbers of the weight, of which `saved` is the copy, or in a trace the weight.
at::Tensor numbers_of(AutogradContext* context, const at::Tensor& saved, at::ScalarType dtype) {
  if (saved.scalar_type() == at::kByte) return dequantized(saved).to(dtype);
  using Dequantized = at::Tensor(const at::Tensor&, at::ScalarType, bool, bool);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("habana_mp::dequantized", "")
                             .typed<Dequantized>();
  return op.call(saved, dtype, context->saved_data["turned"].toBool(),
                 context->saved_data["cached"].toBool());
}

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& /*input*/,
                            const OptionalTensor& bias, const Int8Forward& how,
                            const std::optional<Int8Factors>& factors) {
    context->save_for_backward({how.weight});
    save(context, how, bias);
    if (factors) {
      context->saved_data["factor"] = factors->product;
      context->saved_data["factor of bias"] = factors->bias;
    }
    const at::AutoDispatchBelowAutograd below;
    return how.compute();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor weight = saved_in(context)[0];
    const Uncast uncast(autocast::kAllKeys);
    auto& data = context->saved_data;
    at::Tensor gradient = gradients[0], of_input, of_bias;
    if (!gradient.defined()) return {of_input, of_bias, {}, {}};
    const bool factors = data.count("factor") != 0, turned = data["turned"].toBool();
    if (factors) gradient = gradient.to(at::kFloat);
    if (needs_bias(context)) {
      of_bias = factors ? at::sum_to(gradient, data["bias"].toSymIntVector()) *
                              data["factor of bias"].toDouble()
                        : gradient.reshape_symint({-1, gradient.sym_size(-1)})
                              .sum(0, /*keepdim=*/false, at::kFloat);
    }
    if (context->needs_input_grad(0)) {
      const double factor = factors ? data["factor"].toDouble() : 1;
      if (factor != 1) gradient = gradient * factor;
      const at::Tensor numbers = numbers_of(context, weight, gradient.scalar_type());
      of_input = at::matmul(gradient, turned ? numbers.mT() : numbers);
      // An input that the op has cast itself may be in float32.
      if (factors) of_input = of_input.to(gradients[0].scalar_type());
    }
    return {of_input, of_bias, {}, {}};
  }
};

struct Convolved : torch::autograd::Function<Convolved> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const OptionalTensor& bias, const Int8Windows& windows,
                            const Int8Forward& how) {
    context->save_for_backward({input, how.weight});
    save(context, how, bias);
    const auto numbers = [&](const char* name, at::IntArrayRef all) {
      context->saved_data[name] = c10::IValue(all);
    };
    numbers("stride", windows.stride);
    numbers("before", windows.before);
    numbers("after", windows.after);
    numbers("dilation", windows.dilation);
    context->saved_data["groups"] = windows.groups;
    const at::AutoDispatchBelowAutograd below;
    return how.compute();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = saved_in(context);
    const Uncast uncast(autocast::kAllKeys);
    const auto numbers = [&](const char* name) { return context->saved_data[name].toDimVector(); };
    at::Tensor gradient = gradients[0], of_input, of_bias;
    if (!gradient.defined()) return {of_input, of_bias, {}, {}};
    const at::DimVector before = numbers("before"), after = numbers("after");
    const auto dims = static_cast<std::int64_t>(before.size());
    const bool batched = gradient.dim() == dims + 2;
    if (!batched) gradient = gradient.unsqueeze(0);
    if (context->needs_input_grad(0)) {
      // By torch, of an input that is padded as the windows had it.
      at::DimVector pads;
      for (std::size_t i = before.size(); i-- > 0;) {
        pads.push_back(before[i]);
        pads.push_back(after[i]);
      }
      const at::Tensor images =
          (batched ? saved[0] : saved[0].unsqueeze(0)).to(gradient.scalar_type());
      const at::Tensor padded = at::constant_pad_nd(images, pads, 0);
      const at::DimVector none(before.size(), 0);
      of_input = std::get<0>(at::convolution_backward(
          gradient, padded, numbers_of(context, saved[1], gradient.scalar_type()), std::nullopt,
          numbers("stride"), none, numbers("dilation"), false, none,
          context->saved_data["groups"].toInt(), {true, false, false}));
      for (std::int64_t i = 0; i < dims; ++i) {
        of_input = of_input.narrow_symint(i + 2, before[static_cast<std::size_t>(i)],
                                          images.sym_size(i + 2));
      }
      if (!batched) of_input = of_input.squeeze(0);
    }
    if (needs_bias(context)) {
      at::DimVector others{0};
      for (std::int64_t i = 0; i < dims; ++i) others.push_back(i + 2);
      of_bias = gradient.sum(others, /*keepdim=*/false, at::kFloat);
    }
    return {of_input, of_bias, {}, {}};
  }
};

}  // namespace

at::Tensor recorded_product(const at::Tensor& input, const at::Tensor& bias,
                            const Int8Forward& forward, const std::optional<Int8Factors>& factors) {
  return Product::apply(input, some(bias), forward, factors);
}

at::Tensor recorded_convolution(const at::Tensor& input, const at::Tensor& bias,
                                const Int8Windows& windows, const Int8Forward& forward) {
  return Convolved::apply(input, some(bias), windows, forward);
}

at::Tensor dequantized_weight(const at::Tensor& weight, at::ScalarType dtype, bool turned,
                              bool cached) {
  if (is_ordinary(weight)) {
    const auto caller = cached ? std::optional(WeightCache::Caller::Dispatcher) : std::nullopt;
    const Layout layout = turned ? Layout::Int8Turned : Layout::Int8;
    return dequantized(int8_copy(weight, layout, caller)).to(dtype);
  }
  // What a compiler knows of it
  const at::Tensor rows = turned ? weight.mT() : weight;
  const at::Tensor numbers = at::empty_symint(rows.sym_sizes(), weight.options().dtype(dtype));
  return turned ? numbers.mT() : numbers;
}

}  // namespace habana_mp
