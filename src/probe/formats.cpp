#include "probe/formats.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/op_schema.h"
#include "call/int8_call.h"
#include "cast/dtypes.h"
#include "evidence/numbers.h"
#include "policy/op_traits.h"
#include "weights/int8_weight.h"

namespace habana_mp::probe {
namespace {

// What the call is given, as an op in 8 bits has it; of an op that has no such weight None.
struct Given {
  Int8Op op = Int8Op::None;
  at::Tensor input, weight, bias;
};

Given given_of(const MeasuredCall& context, at::ScalarType low) {
  const auto& schema = context.op->handle.schema();
  const std::string own(without_aten(schema.name()));
  const std::string& overload = schema.overload_name();
  const Int8Op op = int8_op(overload.empty() ? own : own + "." + overload);
  if (op == Int8Op::None) return {};
  const auto at = [&](std::uint8_t position) {
    const c10::IValue& value = context.arguments[position];
    return value.isTensor() ? context.given(value.toTensor()) : at::Tensor();
  };
  const Int8Places places = places_of(op);
  Given given{op, at(places.input), at(places.weight),
              has_bias(op) ? at(places.bias) : at::Tensor()};
  if (!given.input.defined() || !has_int8_weight(op, given.input, given.weight, /*traced=*/false) ||
      !has_int8_kernel(given.input, given.weight)) {
    return {};
  }
  // A cast is counted for itself.
  if (may_be_cast(dtype_of(given.input))) given.input = given.input.detach().to(low);
  return given;
}

}  // namespace

void measure_formats(const MeasuredCall& context, const std::vector<evidence::Compared>& wanted,
                     const report::Measure& measure, report::Values& values,
                     std::vector<Off>& waiting) {
  if (measure.formats == 0 || wanted.size() != 1) return;
  const at::Tensor& result = wanted.front().result;
  try {
    const Given given = given_of(context, scalar_type(measure.low));
    if (given.op == Int8Op::None) return;
    const std::string_view name = without_aten(context.op->handle.schema().name());
    const at::Tensor full = evidence::in_float32(wanted.front().other).detach();
    const at::Tensor copy = rounded_to_int8(given.weight, int8_layout(given.op));
    for (std::size_t i = 0; i < report::kFormats.size(); ++i) {
      const bool accepted = std::ranges::count(int8_ops(report::kFormats[i]), name) != 0;
      if ((measure.formats >> i & 1) == 0 || !accepted) continue;
      const bool activations = report::kFormats[i] == Action::Int8;
      const std::uint64_t start = now_ns();
      const at::Tensor found = int8_result(
          given.op,
          {given.input, given.weight, given.bias, measure.low, activations, std::nullopt, copy},
          context.arguments);
      const std::uint64_t ns = now_ns() - start;
      if (!found.defined() || found.sizes() != full.sizes()) continue;
      evidence::Difference difference;
      at::Tensor* off = result.requires_grad() ? &difference.numbers : nullptr;
      values.formats[i] = {.calls = 1, .error = evidence::error_of(found, full, off), .ns = ns};
      waiting.push_back({.result = result,
                         .difference = std::move(difference),
                         .site = context.site,
                         .format = i});
    }
  } catch (const std::exception&) {  // the op would raise: such as a weight whose memory is gone
  }
}

}  // namespace habana_mp::probe
