#include "probe/inherited_errors.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "cast/tensors.h"
#include "evidence/numbers.h"
#include "evidence/shadows.h"

namespace habana_mp::probe {
namespace {

using evidence::Throughout;
using report::SiteId;

bool requires_gradient(c10::ArrayRef<at::Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  });
}

// An argument as it was given, without the errors made before.
at::Tensor without_errors(const MeasuredCall& context, const at::Tensor& argument, SiteId& origin) {
  const at::Tensor& given = context.given(argument);
  const at::Tensor shadow = evidence::shadow_of(given, Throughout::Float32, &origin);
  return context.reference(argument, shadow.defined() ? shadow : given);
}

bool any_shadow(c10::ArrayRef<c10::IValue> arguments, const watch::CastTensors& casts,
                Throughout dtype) {
  const auto has = [&](const at::Tensor& tensor) {
    return evidence::shadow_of(tensor, dtype).defined();
  };
  return std::ranges::any_of(tensors_in(arguments), has) ||
         std::ranges::any_of(casts, [&](const auto& cast) { return has(cast.first); });
}

// What is chosen by numbers that are off, beside what is chosen by those of float32.
evidence::Flips flips_of(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                         const torch::jit::Stack& right) {
  const char* op = context.op->handle.schema().name().c_str();
  return evidence::flips_of(evidence::choices_of(op, context.arguments, results),
                            evidence::choices_of(op, context.arguments, right));
}

// The shadows of what an op has moved go with it: the op on these, where there are any.
std::optional<torch::jit::Stack> move(const MeasuredCall& context,
                                      const std::vector<c10::IValue>& results, Throughout dtype) {
  SiteId origin = report::kNone;
  const auto shadow = [&](const at::Tensor& argument) {
    if (dtype == Throughout::Float32) return without_errors(context, argument, origin);
    const at::Tensor numbers = evidence::shadow_of(argument, dtype, &origin);
    return numbers.defined() ? numbers : evidence::in_float32(argument);
  };
  auto moved = std::optional<torch::jit::Stack>();
  if (is_copy(*context.op)) {
    moved = torch::jit::Stack{shadow(context.arguments[0].toTensor())};
  } else {
    moved = evidence::rerun(*context.op, context.arguments, shadow);
  }
  if (!moved || origin == report::kNone) return std::nullopt;
  for (const auto& [result, numbers] : evidence::compared(results, *moved)) {
    if (context.before || !evidence::shadow_of(result, dtype).defined())
      evidence::keep_shadow(result, dtype, evidence::in_float32(numbers), origin, context.before);
  }
  return moved;
}

}  // namespace

bool is_copy(const evidence::Op& op) {
  const std::string_view name = op.handle.schema().name();
  return name == "aten::_to_copy" || name == "aten::clone";
}

bool has_any_shadow(c10::ArrayRef<c10::IValue> arguments) {
  return any_shadow(arguments, {}, Throughout::Float32) ||
         any_shadow(arguments, {}, Throughout::Low);
}

bool is_shadowed(const MeasuredCall& context) {
  return any_shadow(context.arguments, context.casts, Throughout::Float32);
}

evidence::Flips follow_shadows(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                               const std::vector<evidence::Compared>& given,
                               std::vector<Off>& waiting) {
  const bool constant = !requires_gradient(tensors_in(results));  // also of weights, in no_grad
  if (!is_shadowed(context)) {
    // Here the first error is made.
    if (!constant) return {};
    for (const auto& [result, full] : given)
      evidence::keep_shadow(result, Throughout::Float32, evidence::in_float32(full), context.site,
                            context.before);
    return {};
  }
  SiteId origin = report::kNone;
  const auto right = evidence::rerun(
      *context.op, context.arguments,
      [&](const at::Tensor& argument) { return without_errors(context, argument, origin); });
  if (!right) return {};
  const auto pairs = evidence::compared(results, *right);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const at::Tensor result = pairs[i].result.detach();
    const at::Tensor full = evidence::in_float32(pairs[i].other);
    const at::Tensor own =
        i < given.size() ? evidence::in_float32(given[i].other) : evidence::in_float32(result);
    at::Tensor difference;
    const double before = evidence::error_of(own, full, &difference).squares;
    if (!constant) {
      waiting.push_back({pairs[i].result, {difference}, origin, true, true});
      continue;
    }
    const double here = evidence::error_of(result, own, nullptr).squares;
    evidence::keep_shadow(pairs[i].result, Throughout::Float32, full,
                          here > before ? context.site : origin, context.before);
  }
  return flips_of(context, results, *right);
}

void follow_low_shadows(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                        const std::vector<evidence::Compared>& lowered, std::vector<Off>& waiting) {
  if (context.backward) return;
  const bool constant = !requires_gradient(tensors_in(results));
  const bool weights = requires_gradient(tensors_in(context.arguments));
  if (constant && weights && !context.in_function) return;  // in no_grad
  if (!any_shadow(context.arguments, context.casts, Throughout::Low)) {
    if (!constant) return;
    for (const auto& [result, low] : lowered)
      evidence::keep_shadow(result, Throughout::Low, evidence::in_float32(low), context.site,
                            context.before);
    return;
  }
  SiteId origin = report::kNone;
  const auto other =
      evidence::rerun(*context.op, context.arguments, [&](const at::Tensor& argument) {
        const at::Tensor low =
            evidence::shadow_of(context.given(argument), Throughout::Low, &origin);
        return low.defined() ? low.to(argument.scalar_type()) : argument.detach();
      });
  if (!other) return;
  const auto pairs = evidence::compared(results, *other);
  std::vector<evidence::Compared> rounded;
  if (!constant && !lowered.empty()) {
    const at::ScalarType dtype = lowered.front().other.scalar_type();
    const auto all =
        evidence::rerun(*context.op, context.arguments, [&](const at::Tensor& argument) {
          const bool off = evidence::shadow_of(argument, Throughout::Low).defined();
          return off ? argument.detach().to(dtype).to(argument.scalar_type()) : argument.detach();
        });
    if (all) rounded = evidence::compared(results, *all);
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    at::Tensor difference;
    const at::Tensor numbers = evidence::in_float32(pairs[i].other);
    const at::Tensor ran = evidence::in_float32(pairs[i].result.detach());
    const double before = evidence::error_of(numbers, ran, &difference).squares;
    if (!constant) {
      // A call that ran low has rounded them already.
      at::Tensor rounding = at::zeros_like(difference);
      if (i < rounded.size())
        evidence::error_of(evidence::in_float32(rounded[i].other), ran, &rounding);
      waiting.push_back({.result = pairs[i].result,
                         .difference = {difference, rounding},
                         .site = origin,
                         .inherited = true});
      continue;
    }
    const bool own = i < lowered.size();
    const double here =
        own ? evidence::error_of(lowered[i].other, lowered[i].result.detach(), nullptr).squares : 0;
    const at::Tensor low = own ? numbers.to(lowered[i].other.scalar_type()) : numbers;
    evidence::keep_shadow(pairs[i].result, Throughout::Low, evidence::in_float32(low),
                          here > before ? context.site : origin, context.before);
  }
}

void leave_functions(c10::ArrayRef<c10::IValue> arguments, std::vector<Off>& waiting) {
  for (const at::Tensor& made : tensors_in(arguments)) {
    if (!made.defined() || !made.requires_grad() || made.is_leaf()) continue;
    for (const Throughout dtype : {Throughout::Float32, Throughout::Low}) {
      SiteId origin = report::kNone;
      const at::Tensor other = evidence::take_shadow(made, dtype, origin);
      if (!other.defined()) continue;
      const evidence::OutOfSight out_of_sight;
      const bool off = dtype == Throughout::Float32;
      const at::Tensor ran = evidence::in_float32(made.detach());
      evidence::Difference difference;
      evidence::error_of(off ? ran : other, off ? other : ran, &difference.numbers);
      // What is left of it where the op inside is in float32, and those that use the result are
      // not.
      if (off && made.scalar_type() != at::kFloat)
        evidence::error_of(other.to(made.scalar_type()), other, &difference.rounding);
      waiting.push_back({made, std::move(difference), origin, off, true});
    }
  }
}

evidence::Flips move_shadow(const MeasuredCall& context, const std::vector<c10::IValue>& results) {
  const evidence::OutOfSight out_of_sight;
  move(context, results, Throughout::Low);
  const auto moved = move(context, results, Throughout::Float32);
  return moved ? flips_of(context, results, *moved) : evidence::Flips{};
}

}  // namespace habana_mp::probe
