#include "probe/formats.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/op_schema.h"
#include "call/int8_call.h"
#include "call/packed_call.h"
#include "cast/dtypes.h"
#include "evidence/numbers.h"
#include "policy/op_traits.h"
#include "weights/int8_weight.h"

namespace habana_mp::probe {
namespace {

// What the call is given, as an op in 8 bits has it; of an op that has no such weight None.
struct Given {
  Int8Op op = Int8Op::None;
  std::string name;  // with its overload
  at::Tensor input, weight, bias;
};

Given given_of(const evidence::Op& called, c10::ArrayRef<c10::IValue> arguments,
               const evidence::Change& as_given, DType low) {
  const std::string name = overload_of(called.handle.schema());
  const Int8Op op = int8_op(name);
  if (op == Int8Op::None) return {};
  const auto at = [&](std::uint8_t position) {
    const c10::IValue& value = arguments[position];
    return value.isTensor() ? as_given(value.toTensor()) : at::Tensor();
  };
  const Int8Places places = places_of(op);
  Given given{op, name, at(places.input), at(places.weight),
              has_bias(op) ? at(places.bias) : at::Tensor()};
  if (!given.input.defined() || !has_int8_weight(op, given.input, given.weight, /*traced=*/false) ||
      !has_int8_kernel(given.input, given.weight, given.bias)) {
    return {};
  }
  // A cast is counted for itself.
  if (may_be_cast(dtype_of(given.input))) given.input = given.input.detach().to(scalar_type(low));
  return given;
}

// The copy of the weight is made anew, and none is kept.
at::Tensor run(const Given& given, c10::ArrayRef<c10::IValue> arguments, bool activations,
               DType low, const at::Tensor& copy) {
  return int8_result(given.op,
                     {given.input, given.weight, given.bias, low, activations, std::nullopt, copy},
                     arguments);
}

struct Timed {
  at::Tensor result;
  std::uint64_t ns = 0;
};

// The faster of two runs: the first of a shape may compile code.
template <typename Run>
Timed timed(const Run& run) {
  Timed best;
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t start = now_ns();
    at::Tensor result = run();
    const std::uint64_t ns = now_ns() - start;
    if (i == 0 || ns < best.ns) best = {std::move(result), ns};
  }
  return best;
}

// How long the call takes in the low dtype with a copy of its weight that was made before. A report
// hears numbers, so the call itself had no packed weight; that of a training step never has one.
std::uint64_t ns_in_lower(const MeasuredCall& context, const Given& given, at::ScalarType low) {
  const auto lowered = [low](const at::Tensor& tensor) {
    return tensor.defined() && may_be_cast(dtype_of(tensor)) ? tensor.detach().to(low) : tensor;
  };
  const at::Tensor input = lowered(given.input), weight = lowered(given.weight),
                   bias = lowered(given.bias);
  const PackedOperands operands{input, weight, bias, dtype_of_type(low),
                                WeightCache::Caller::Dispatcher};
  const Layout layout = packed_layout(given.name);
  Prepared prepared;
  if (layout == Layout::Convolution) {
    const auto numbers = [&](std::size_t at) { return context.arguments[at].toDimVector(); };
    const auto stride = numbers(3), padding = numbers(4), dilation = numbers(5);
    prepared =
        prepared_convolution(operands, {padding, stride, dilation, context.arguments[6].toInt()});
  } else if (layout != Layout::Plain) {
    prepared = prepared_product(layout, operands);
  }
  if (prepared) return timed(prepared).ns;
  std::uint64_t ns[2] = {};
  for (std::uint64_t& each : ns) {
    evidence::rerun(
        *context.op, context.arguments,
        [&](const at::Tensor& argument) { return lowered(context.given(argument)); }, &each);
  }
  return std::min(ns[0], ns[1]);
}

}  // namespace

void measure_formats(const MeasuredCall& context, const std::vector<evidence::Compared>& wanted,
                     const report::Measure& measure, report::Values& values,
                     std::vector<Off>& waiting) {
  if (measure.formats == 0 || wanted.size() != 1) return;
  const at::Tensor& result = wanted.front().result;
  try {
    const Given given = given_of(
        *context.op, context.arguments,
        [&](const at::Tensor& argument) { return context.given(argument); }, measure.low);
    if (given.op == Int8Op::None) return;
    const std::string_view name = without_aten(context.op->handle.schema().name());
    const at::Tensor full = evidence::in_float32(wanted.front().other).detach();
    const at::Tensor copy = rounded_to_int8(given.weight, int8_layout(given.op));
    const std::uint64_t lower_ns =
        may_be_low(dtype_of(result)) ? ns_in_lower(context, given, scalar_type(measure.low)) : 0;
    for (std::size_t i = 0; i < report::kFormats.size(); ++i) {
      const bool accepted = std::ranges::count(int8_ops(report::kFormats[i]), name) != 0;
      if ((measure.formats >> i & 1) == 0 || !accepted) continue;
      const bool activations = report::kFormats[i] == Action::Int8;
      const auto [found, ns] =
          timed([&] { return run(given, context.arguments, activations, measure.low, copy); });
      if (!found.defined() || found.sizes() != full.sizes()) continue;
      evidence::Difference difference;
      at::Tensor* off = result.requires_grad() ? &difference.numbers : nullptr;
      values.formats[i] = {.calls = 1,
                           .error = evidence::error_of(found, full, off),
                           .ns = ns,
                           .lower_ns = lower_ns};
      waiting.push_back({.result = result,
                         .difference = std::move(difference),
                         .site = context.site,
                         .format = i});
    }
  } catch (const std::exception&) {  // the op would raise: such as a weight whose memory is gone
  }
}

std::optional<torch::jit::Stack> rerun_in_8_bits(const evidence::Op& op,
                                                 c10::ArrayRef<c10::IValue> arguments,
                                                 const evidence::Change& given,
                                                 report::Outcome outcome, DType low) {
  if (!may_be_low(low)) return std::nullopt;  // a file may say anything
  try {
    const Given call = given_of(op, arguments, given, low);
    if (call.op == Int8Op::None) return std::nullopt;
    const at::Tensor copy = rounded_to_int8(call.weight, int8_layout(call.op));
    const at::Tensor found = run(call, arguments, outcome == report::Outcome::Int8, low, copy);
    if (!found.defined()) return std::nullopt;
    return torch::jit::Stack{found};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace habana_mp::probe
