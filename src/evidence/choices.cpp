#include "evidence/choices.h"

#include <algorithm>

#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

bool is_chosen(const c10::IValue& result) {
  if (!result.isTensor() || !result.toTensor().defined()) return false;
  const at::Tensor& tensor = result.toTensor();
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) &&
         tensor.layout() == at::kStrided && !tensor.is_meta();
}

}  // namespace

Choices choices_of(std::string_view op, c10::ArrayRef<c10::IValue> arguments,
                   c10::ArrayRef<c10::IValue> results) {
  // Those of more results keep a state there, as attention does that of a random number generator.
  if (results.size() > 2 || !has_floating(arguments)) return {};
  const auto chosen = std::ranges::find_if(results, is_chosen);
  if (chosen == results.end()) return {};
  const OutOfSight out_of_sight;
  at::Tensor numbers = chosen->toTensor().detach().to(at::kLong);
  Choices choices;
  if (op == "aten::topk" && numbers.dim() > 0 && arguments.size() > 2) {
    numbers = std::get<0>(numbers.movedim(arguments[2].toInt(), -1).sort(-1));
    choices.width = std::max<std::int64_t>(1, numbers.size(-1));
  }
  const std::int64_t most = static_cast<std::int64_t>(kMostChosen) / choices.width * choices.width;
  numbers = numbers.reshape({-1}).slice(0, 0, most).to(at::kCPU).contiguous();
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  choices.numbers.assign(first, first + numbers.numel());
  return choices;
}

Flips flips_of(const Choices& a, const Choices& b) {
  if (a.numbers.size() != b.numbers.size() || a.width != b.width) return {};
  const auto width = static_cast<std::size_t>(a.width);
  Flips found{.choices = a.numbers.size() / width};
  for (std::size_t i = 0; i + width <= a.numbers.size(); i += width) {
    const auto own = a.numbers.begin() + static_cast<std::ptrdiff_t>(i);
    const auto other = b.numbers.begin() + static_cast<std::ptrdiff_t>(i);
    found.flipped += std::equal(own, own + a.width, other) ? 0 : 1;
  }
  return found;
}

}  // namespace habana_mp::evidence
