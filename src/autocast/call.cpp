#include "autocast/call.h"

#include <algorithm>
#include <utility>

#include "call/weight_ops.h"
#include "cast/node.h"

namespace habana_mp::autocast {

Call::Call(const Form& form, torch::jit::Stack& stack, c10::DeviceType device)
    : form_(form), stack_(stack), device_(device) {
  for (const TensorArgument& place : form.tensors) {
    const c10::IValue& value = slot(place.position);
    if (value.isTensor()) {
      add(value.toTensor(), {place.position, -1}, place.role);
    } else if (value.isList()) {
      std::int32_t item = 0;
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) add(element.toTensor(), {place.position, item}, place.role);
        ++item;
      }
    }
  }
}

void Call::add(const at::Tensor& tensor, Place place, Role role) {
  if (!tensor.defined()) return;
  args_.push_back({dtype_on(tensor, device_), tensor.dim() == 0, role});
  places_.push_back(place);
}

const at::Tensor& Call::tensor(std::size_t i) const {
  const c10::IValue& value = slot(places_[i].position);
  if (places_[i].item < 0) return value.toTensor();
  return value.toListRef()[static_cast<std::size_t>(places_[i].item)].toTensor();
}

bool Call::explicit_dtype() const {
  return std::any_of(form_.dtypes.begin(), form_.dtypes.end(),
                     [this](std::uint8_t position) { return !slot(position).isNone(); });
}

bool Call::any_to_cast(const Decision& decision) const {
  return std::any_of(args_.begin(), args_.end(),
                     [&](const Arg& arg) { return decision.casts(arg); });
}

bool Call::may_be_traced() const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (habana_mp::may_be_traced(tensor(i))) return true;
  }
  return false;
}

c10::SmallVector<at::Tensor, 8> Call::tensors() const {
  c10::SmallVector<at::Tensor, 8> found;
  for (std::size_t i = 0; i < places_.size(); ++i) found.push_back(tensor(i));
  return found;
}

c10::SmallVector<at::Tensor, 8> Call::results() const {
  return tensors_in(torch::jit::last(stack_, form_.returns));
}

std::string Call::label(std::size_t i, const c10::FunctionSchema& schema) const {
  const std::string& name = schema.arguments()[places_[i].position].name();
  return places_[i].item < 0 ? name : name + "[" + std::to_string(places_[i].item) + "]";
}

void Call::cast(const Decision& decision, bool cached) {
  cast(decision, {.cached = cached, .contiguous = form_.contiguous},
       [](std::size_t) { return false; });
}

bool Call::is_of_traced_weight(const Decision& decision) const {
  if (!may_be_low(decision.to)) return false;
  bool found = false;
  for (std::size_t i = 0; i < args_.size(); ++i) {
    if (records_graph(tensor(i))) return false;
    found = found || (decision.casts(args_[i]) && is_traced_weight(tensor(i)));
  }
  return found;
}

void Call::cast_but_parameters(Int8Op op, const Decision& decision, bool cached) {
  const bool int8 = is_int8(decision.cause);
  const Int8Places kept = places_of(op);
  cast(decision, {.cached = false, .contiguous = form_.contiguous}, [&](std::size_t i) {
    const std::uint8_t at = places_[i].position;
    return (int8 && (at == kept.weight || (has_bias(op) && at == kept.bias))) ||
           is_traced_parameter(tensor(i));
  });
  stack_.emplace_back(scalar_type(decision.to));
  stack_.emplace_back(std::string(is_int8(decision.cause) ? cause_name(decision.cause) : ""));
  stack_.emplace_back(cached);
}

bool Call::is_of_traced_int8_weight(Int8Op op) const {
  const c10::IValue& weight = slot(places_of(op).weight);
  return weight.isTensor() && is_traced_parameter(weight.toTensor(), /*or_low_or_view=*/true);
}

bool Call::has_int8_weight(Int8Op op) const {
  if (op == Int8Op::None) return false;
  const c10::IValue &input = slot(places_of(op).input), &weight = slot(places_of(op).weight);
  return input.isTensor() && weight.isTensor() &&
         habana_mp::has_int8_weight(op, input.toTensor(), weight.toTensor(),
                                    is_of_traced_int8_weight(op));
}

bool Call::compute_int8(Int8Op op, const Decision& decision, bool cached) {
  const auto [input, weight, bias] = places_of(op);
  const auto at = [&](std::uint8_t position) {
    const c10::IValue& value = slot(position);
    return value.isTensor() ? value.toTensor() : at::Tensor();
  };
  const at::Tensor tensors[] = {at(input), at(weight), has_bias(op) ? at(bias) : at::Tensor()};
  if (!tensors[0].defined() || !has_int8_kernel(tensors[0], tensors[1], tensors[2])) {
    round_arguments(op, decision);
    return false;
  }
  const auto caller = cached ? std::optional(WeightCache::Caller::Dispatcher) : std::nullopt;
  const Int8Operands operands{
      tensors[0], tensors[1], tensors[2], decision.to, decision.cause == Cause::Int8, caller};
  if (op == Int8Op::EmbeddingBag) {
    auto results = int8_bags(operands);
    if (!results) return false;
    torch::jit::drop(stack_, form_.count);
    std::apply([&](auto&... each) { torch::jit::push(stack_, std::move(each)...); }, *results);
    return true;
  }
  at::Tensor result = int8_result(op, operands, torch::jit::last(stack_, form_.count));
  if (!result.defined()) return false;
  torch::jit::drop(stack_, form_.count);
  torch::jit::push(stack_, std::move(result));
  return true;
}

std::optional<BagResults> Call::int8_bags(const Int8Operands& operands) {
  const bool pads = form_.count > 8 && !slot(8).isNone();
  return int8_embedding_bag(
      operands, {slot(2).toTensor(), slot(3).toBool(), slot(4).toInt(), slot(5).toBool(),
                 slot(7).toBool(), pads ? std::optional(slot(8).toInt()) : std::nullopt});
}

// On other devices, and where a transform of torch sees the tensors: the numbers are rounded, and
// torch's own op computes with them.
void Call::round_arguments(Int8Op op, const Decision& decision) {
  const auto [input, weight, bias] = places_of(op);
  const at::Tensor numbers = slot(weight).toTensor();
  if (!numbers.is_meta() && !numbers.is_cpu()) {
    TORCH_WARN_ONCE("habana_mp: there are no products in 8 bits on ", numbers.device(),
                    ". The weights are rounded to 8 bits, and the products run in ",
                    scalar_type(decision.to));
  }
  // They stay in the dtype that the casts after this are from, unless it holds less.
  const at::ScalarType low = scalar_type(decision.to);
  const auto kept = [low](at::ScalarType given) { return given == low ? low : at::kFloat; };
  slot(weight) = rounded_weight(op, numbers).to(kept(numbers.scalar_type()));
  if (decision.cause != Cause::Int8 || !slot(input).isTensor()) return;
  const at::Tensor x = slot(input).toTensor();
  slot(input) = rounded_activations(op, x.to(low), numbers.dim()).to(kept(x.scalar_type()));
}

template <typename Stays>
void Call::cast(const Decision& decision, How how, const Stays& stays) {
  // One cast for a tensor given twice: what compares its inputs by identity still can.
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 4> done;
  const auto cast_of = [&](const at::Tensor& source) {
    for (const auto& [before, after] : done) {
      if (before.is_same(source)) return after;
    }
    at::Tensor result = cast_argument(source, decision.to, how);
    if (how.cached) lent_.add(result);
    done.emplace_back(source, result);
    return result;
  };
  c10::SmallVector<std::pair<std::uint8_t, c10::IValue>, 4> before;
  for (std::size_t i = 0; i < args_.size(); ++i) {
    if (!decision.casts(args_[i]) || stays(i)) continue;
    const Place place = places_[i];
    at::Tensor result = cast_of(tensor(i));
    c10::IValue& value = slot(place.position);
    const bool copied = !before.empty() && before.back().first == place.position;
    if (!copied) before.emplace_back(place.position, value);
    if (place.item < 0) {
      value = std::move(result);
      continue;
    }
    if (!copied) value = value.toList().copy();
    value.toList().set(static_cast<std::size_t>(place.item), std::move(result));
  }
  if (lent_.empty()) return;
  given_.assign(stack_.end() - form_.count, stack_.end());
  for (auto& [position, value] : before) given_[position] = std::move(value);
}

bool Call::compute_packed(Layout layout, const Decision& decision) {
  const auto at = [&](std::uint8_t position) {
    const c10::IValue& value = slot(position);
    return value.isTensor() ? value.toTensor() : at::Tensor();
  };
  const at::Tensor tensors[] = {at(0), at(1), at(2)};
  const PackedOperands operands = packed_operands(layout, tensors[0], tensors[1], tensors[2],
                                                  decision.to, WeightCache::Caller::Dispatcher);
  at::Tensor result = layout == Layout::Convolution ? packed_convolution_of(operands)
                                                    : packed_product_of(layout, operands);
  if (!result.defined()) return false;
  torch::jit::drop(stack_, form_.count);
  torch::jit::push(stack_, std::move(result));
  return true;
}

at::Tensor Call::packed_product_of(Layout layout, const PackedOperands& operands) {
  // addmm has beta and alpha after its tensors.
  const auto is_one = [&](std::uint8_t position) {
    const c10::IValue& value = slot(position);
    return value.isScalar() && value.toScalar().equal(1);
  };
  if (layout == Layout::Addmm && !(is_one(3) && is_one(4))) return {};
  return packed_product(layout, operands);
}

at::Tensor Call::packed_convolution_of(const PackedOperands& operands) {
  if (!slot(3).isIntList() || !slot(4).isIntList() || !slot(5).isIntList() || !slot(6).isInt()) {
    return {};
  }
  const auto numbers = [&](std::uint8_t position) { return slot(position).toDimVector(); };
  const auto stride = numbers(3), padding = numbers(4), dilation = numbers(5);
  return packed_convolution(operands, {padding, stride, dilation, slot(6).toInt()});
}

bool Call::lends() const {
  if (lent_.empty()) return false;
  const auto results = torch::jit::last(stack_, form_.returns);
  return std::any_of(results.begin(), results.end(), [&](const c10::IValue& value) {
    if (value.isTensor()) return lent_.include(value.toTensor());
    if (!value.isTensorList()) return false;
    const auto items = value.toTensorVector();
    return std::any_of(items.begin(), items.end(),
                       [&](const auto& item) { return lent_.include(item); });
  });
}

void Call::take_back() {
  torch::jit::drop(stack_, form_.returns);
  stack_.insert(stack_.end(), given_.begin(), given_.end());
  lent_.clear();
}

}  // namespace habana_mp::autocast
