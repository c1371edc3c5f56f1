#include "probe/inherited_errors.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "cast/tensors.h"
#include "evidence/numbers.h"
#include "evidence/shadows.h"

namespace habana_mp::probe {
namespace {

using report::SiteId;

bool requires_gradient(c10::ArrayRef<at::Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  });
}

// An argument as it was given, without the errors made before.
at::Tensor without_errors(const MeasuredCall& context, const at::Tensor& argument, SiteId& origin) {
  const at::Tensor& given = context.given(argument);
  const at::Tensor shadow = evidence::shadow_of(given, &origin);
  return context.reference(argument, shadow.defined() ? shadow : given);
}

// What is chosen by numbers that are off, beside what is chosen by those of float32.
evidence::Flips flips_of(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                         const torch::jit::Stack& right) {
  const char* op = context.op->handle.schema().name().c_str();
  return evidence::flips_of(evidence::choices_of(op, context.arguments, results),
                            evidence::choices_of(op, context.arguments, right));
}

}  // namespace

bool is_copy(const evidence::Op& op) {
  const std::string_view name = op.handle.schema().name();
  return name == "aten::_to_copy" || name == "aten::clone";
}

bool is_shadowed(c10::ArrayRef<c10::IValue> arguments) {
  const auto tensors = tensors_in(arguments);
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return evidence::shadow_of(tensor).defined();
  });
}

bool is_shadowed(const MeasuredCall& context) {
  return is_shadowed(context.arguments) ||
         std::any_of(context.casts.begin(), context.casts.end(),
                     [](const auto& cast) { return evidence::shadow_of(cast.first).defined(); });
}

evidence::Flips follow_shadows(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                               const std::vector<evidence::Compared>& given,
                               std::vector<Off>& waiting) {
  const bool constant = !requires_gradient(tensors_in(results));  // also of weights, in no_grad
  if (!is_shadowed(context)) {
    // Here the first error is made.
    if (!constant) return {};
    for (const auto& [result, full] : given)
      evidence::keep_shadow(result, evidence::in_float32(full), context.site);
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
    evidence::keep_shadow(pairs[i].result, full, here > before ? context.site : origin);
  }
  return flips_of(context, results, *right);
}

evidence::Flips move_shadow(const MeasuredCall& context, const std::vector<c10::IValue>& results) {
  const evidence::OutOfSight out_of_sight;
  SiteId origin = report::kNone;
  const auto without = [&](const at::Tensor& argument) {
    return without_errors(context, argument, origin);
  };
  auto moved = std::optional<torch::jit::Stack>();
  if (is_copy(*context.op)) {
    moved = torch::jit::Stack{without(context.arguments[0].toTensor())};
  } else {
    moved = evidence::rerun(*context.op, context.arguments, without);
  }
  if (!moved || origin == report::kNone) return {};
  for (const auto& [result, numbers] : evidence::compared(results, *moved)) {
    if (!evidence::shadow_of(result).defined())
      evidence::keep_shadow(result, evidence::in_float32(numbers), origin);
  }
  return flips_of(context, results, *moved);
}

}  // namespace habana_mp::probe
