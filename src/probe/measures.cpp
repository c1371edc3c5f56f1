#include "probe/measures.h"

#include <ATen/ops/nan_to_num.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "base/op_schema.h"
#include "cast/dtypes.h"
#include "cast/tensors.h"
#include "evidence/numbers.h"
#include "evidence/shadows.h"
#include "policy/op_traits.h"
#include "probe/formats.h"
#include "probe/inherited_errors.h"
#include "watch/observatory.h"

namespace habana_mp::probe {

using report::Measure;
using report::SiteId;
using report::Unmeasured;
using report::Values;

namespace {

// Whether the same op in the same module has made the tensor. It would be rounded already if the
// site ran low: to round it again would count its error twice, as of two additions to one residual
// stream.
bool made_by(const at::Tensor& tensor, SiteId site) {
  if (!tensor.has_storage()) return false;
  const std::lock_guard guard(watch::all().mutex);
  const History* history = watch::all().histories.find(tensor);
  if (history == nullptr || history->maker == report::kNone) return false;
  const report::Site &maker = watch::all().sites[history->maker], &own = watch::all().sites[site];
  return maker.op == own.op && maker.module == own.module && maker.outcome == own.outcome;
}

// A call that could not be measured after all.
void leave_out(Values& values, const MeasuredCall& context) {
  const bool backward = context.backward;
  (backward ? values.backward_calls : values.calls) = 0;
  (backward ? values.backward_ran_ns : values.ran_ns) = 0;
  values.leave_out(context.draws ? Unmeasured::Random : Unmeasured::Kernel, backward);
}

// Whether a call has made float32 alone.
bool stays_wide(const std::vector<c10::IValue>& results) {
  const auto made = tensors_in(results);
  return std::ranges::any_of(made,
                             [](const at::Tensor& result) {
                               return result.defined() && dtype_of(result) == DType::Float32;
                             }) &&
         std::ranges::none_of(made, [](const at::Tensor& result) {
           return result.defined() && may_be_low(dtype_of(result));
         });
}

// The dtype that the result would be cast to if it were in float32.
at::ScalarType low_of(const at::Tensor& result, const Measure& measure) {
  return may_be_low(dtype_of(result)) ? result.scalar_type() : scalar_type(measure.low);
}

// What numbers in float32 are off by if they are rounded alone.
at::Tensor rounding_of(const at::Tensor& full, at::ScalarType low) {
  at::Tensor rounding;
  evidence::error_of(evidence::in_dtype(full, low), full, &rounding);
  return rounding;
}

// Whether numbers that are rounded before and behind an op come to the same: of relu, not of the
// difference of near numbers.
bool is_alike(const at::Tensor& rounding, const at::Tensor& passed) {
  constexpr double kAlike = 0.05;  // roundings are kept in bfloat16, so that some fall to the side
  const double off = evidence::sum_of_squares(passed - rounding);
  return off <= kAlike * evidence::sum_of_squares(passed);
}

void keep_rounding(const at::Tensor& result, const at::Tensor& rounding,
                   std::vector<Off>& waiting) {
  for (Off& off : waiting) {
    if (off.result.is_same(result) && off.ran && !off.inherited) off.difference.rounding = rounding;
  }
}

bool is_same_op(SiteId maker, SiteId site) {
  const std::lock_guard guard(watch::all().mutex);
  return watch::all().sites[maker].op == watch::all().sites[site].op;
}

// The call on other numbers than it was given: those that `change` gives, where it gives some.
// Nothing where it gives none.
std::optional<torch::jit::Stack> rerun_on(const MeasuredCall& context,
                                          const evidence::Change& change) {
  const auto tensors = tensors_in(context.arguments);
  const bool any = std::ranges::any_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.defined() && change(context.given(tensor)).defined();
  });
  if (!any) return std::nullopt;
  return evidence::rerun(*context.op, context.arguments, [&](const at::Tensor& argument) {
    const at::Tensor& given = context.given(argument);
    const at::Tensor changed = change(given);
    return changed.defined() ? changed : evidence::in_float32(given).detach();
  });
}

// The call as it would be if the op had run in float32 wherever it is called. Numbers of the low
// dtype times one that is nearly 1, as the scale of a norm is, are all rounded to one side: what
// such a result loses to a cast cannot be measured on arguments that the op itself has rounded.
std::optional<torch::jit::Stack> rerun_unrounded(const MeasuredCall& context) {
  return rerun_on(context, [&](const at::Tensor& given) {
    SiteId maker = report::kNone;
    if (!may_be_low(dtype_of(given))) return at::Tensor();
    const at::Tensor rounding = evidence::known_rounding(given, &maker);
    at::Tensor before = rounding.defined()
                            ? evidence::in_float32(given).detach().sub(rounding)
                            : evidence::shadow_of(given, evidence::Throughout::Float32, &maker);
    return before.defined() && is_same_op(maker, context.site) ? before : at::Tensor();
  });
}

}  // namespace

void add(Values& values, const evidence::Flips& flips) {
  values.choices += flips.choices;
  values.flipped += flips.flipped;
}

void measure_absorbed(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                      Values& values) {
  if (!context.op->adds || context.backward) return;
  const auto full = [&](const at::Tensor& argument) {
    return evidence::in_float32(context.given(argument));
  };
  const at::Tensor added = evidence::addend_of(*context.op, context.arguments, full);
  if (!added.defined() || added.scalar_type() != at::kFloat) return;
  const at::Tensor to = full(context.arguments.front().toTensor());
  if (to.scalar_type() != at::kFloat) return;
  values.absorbed = evidence::absorbed_of(to.expand_as(added), added);
  const DType made =
      results.front().isTensor() ? dtype_of(results.front().toTensor()) : DType::Other;
  if (made == DType::BFloat16) values.absorbed.lost = values.absorbed.bfloat16;
  if (made == DType::Float16) values.absorbed.lost = values.absorbed.float16;
}

void measure_low_run(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                     const Measure& measure, Values& values, std::vector<Off>& waiting) {
  const auto reference = evidence::rerun(
      *context.op, context.arguments,
      [&](const at::Tensor& argument) { return evidence::in_float32(context.given(argument)); },
      context.backward ? &values.backward_other_ns : &values.other_ns);
  if (!reference) return leave_out(values, context);
  const auto pairs = evidence::compared(results, *reference);
  if (!context.backward) add(values, follow_shadows(context, results, pairs, waiting));
  const std::size_t inherited = waiting.size();
  const auto unrounded = context.backward ? std::nullopt : rerun_unrounded(context);
  const auto exact = unrounded ? evidence::compared(results, *unrounded) : pairs;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [result, wanted] = pairs[i];
    evidence::Difference difference;
    const at::Tensor full = evidence::in_float32(wanted);
    // One of a backward pass requires a gradient with create_graph.
    at::Tensor* off = result.requires_grad() ? &difference.numbers : nullptr;
    const report::Error error = evidence::error_of(result.detach(), full, off);
    (context.backward ? values.backward : values.ran).add(error);
    if (!context.backward && measure.what_if) values.range.add(evidence::range_of(full));
    if (!context.backward && off != nullptr && error.squares > 0) {
      const at::ScalarType low = low_of(result, measure);
      const bool made_low = result.scalar_type() == low && !unrounded;
      if (!made_low || !evidence::is_rounded(result.detach(), full))
        difference.rounding = rounding_of(evidence::in_float32(exact[i].other), low);
    }
    waiting.push_back({result, std::move(difference), context.site, true});
  }
  if (context.backward) return;
  if (measure.what_if && values.ran.squares == 0 && stays_wide(results)) {
    // Given float32 beside numbers that are low already, as a sum with a residual: it has lost
    // nothing, and would if the rest were low, too.
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(inherited), waiting.end());
    values.range = {};
    return measure_what_if(context, results, measure, values, waiting);
  }
  values.low = values.ran;
  if (measure.what_if) follow_low_shadows(context, results, {}, waiting);
  measure_formats(context, pairs, measure, values, waiting);
}

void measure_what_if(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                     const Measure& measure, Values& values, std::vector<Off>& waiting) {
  const at::ScalarType low = scalar_type(measure.low);
  // Of a norm the lower list casts the input alone (D14).
  const bool norm = is_norm(without_aten(context.op->handle.schema().name()));
  const auto round = [&](const at::Tensor& argument) {
    const bool input = context.arguments.front().isTensor() &&
                       context.arguments.front().toTensor().is_same(argument);
    const bool casts = may_be_cast(dtype_of(argument)) && (input || !norm);
    return casts && !made_by(argument, context.site) ? evidence::in_dtype(argument, low) : argument;
  };
  std::optional<torch::jit::Stack> other;
  const auto inputs = tensors_in(context.arguments);
  const bool chained = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& tensor) {
    return tensor.defined() && made_by(tensor, context.site);
  });
  if (!chained) other = evidence::rerun(*context.op, context.arguments, round, &values.other_ns);
  // Where the device has no low kernel: the same by rounding what goes in and comes out.
  if (!other) {
    other = evidence::rerun(*context.op, context.arguments, [&](const at::Tensor& argument) {
      return evidence::in_float32(round(argument));
    });
  }
  for (const c10::IValue& result : results) {
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const at::Tensor full = result.toTensor().detach();
    if (dtype_of(full) != DType::Float32) continue;
    values.range.add(evidence::range_of(full));
  }
  if (!other) return leave_out(values, context);
  std::vector<evidence::Compared> lowered;
  for (const auto& [result, lower] : evidence::compared(results, *other)) {
    if (dtype_of(result) != DType::Float32) continue;
    evidence::Difference difference;
    const at::Tensor rounded = evidence::in_dtype(lower, low);
    at::Tensor* off = result.requires_grad() ? &difference.numbers : nullptr;
    values.low.add(evidence::error_of(rounded, result.detach(), off));
    lowered.push_back({result, rounded});
    if (off != nullptr && !evidence::is_rounded(rounded, result.detach()))
      difference.rounding = rounding_of(result.detach(), low);
    waiting.push_back({result, std::move(difference), context.site, false});
  }
  follow_low_shadows(context, results, lowered, waiting);
  measure_formats(context, evidence::compared(results, results), measure, values, waiting);
}

void pass_on(const MeasuredCall& context, const std::vector<c10::IValue>& results,
             std::vector<Off>& waiting) {
  if (is_copy(*context.op)) return;
  const evidence::OutOfSight out_of_sight;
  const bool computes = !context.op->moves;
  const auto other = rerun_on(context, [](const at::Tensor& given) {
    const at::Tensor rounding = evidence::known_rounding(given);
    if (!rounding.defined()) return at::Tensor();
    const at::Tensor full = evidence::in_float32(given).detach();
    return may_be_low(dtype_of(given)) ? full.sub(rounding) : full.add(rounding);
  });
  if (!other) return;
  for (const auto& [result, changed] : evidence::compared(results, *other)) {
    if (!result.requires_grad()) continue;
    const at::Tensor passed = evidence::in_float32(result.detach()).sub(changed);
    if (computes && may_be_low(dtype_of(result))) {
      at::Tensor rounding;
      evidence::error_of(evidence::in_dtype(changed, result.scalar_type()), changed, &rounding);
      if (!is_alike(rounding, passed)) {
        keep_rounding(result, rounding, waiting);
        continue;
      }
    }
    waiting.push_back({.result = result,
                       .difference = {at::nan_to_num(passed, 0, 0, 0).to(at::kBFloat16)},
                       .site = context.site,
                       .passed = true});
  }
}

void find_inner(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                std::vector<Off>& waiting) {
  if (!context.op->composite || results.size() < 2) return;
  const auto made = tensors_in(results);
  for (Off& off : waiting) off.inner = evidence::inner_gradients(off.result, made, context.nodes);
}

}  // namespace habana_mp::probe
