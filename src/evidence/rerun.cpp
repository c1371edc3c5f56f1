#include "evidence/rerun.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/op_schema.h"
#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "cast/numbers.h"
#include "cast/tensors.h"
#include "policy/op_traits.h"
#include "policy/roles.h"
#include "scope/state.h"

namespace habana_mp::evidence {
namespace {

// Of ops that computes() does not know, because no user calls them: what a backward pass is made
// of, and what attention, norms and convolutions are.
bool is_part(std::string_view op) {
  for (const std::string_view part : {"_backward", "softmax", "scaled_dot_product", "convolution",
                                      "_norm", "_rnn", "addmm", "bilinear", "embedding_bag"}) {
    if (op.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(
      schema.returns(), [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

// What is added to the first argument of the op is its result if that argument is zero.
bool is_addition(std::string_view op) {
  if (op.ends_with('_')) op.remove_suffix(1);
  return op == "add" || op == "sub" || op == "addcmul" || op == "addcdiv";
}

bool only_reads(const c10::FunctionSchema& schema) {
  return std::ranges::none_of(schema.arguments(), is_written);
}

// What makes memory and fills it with nothing, or hands numbers on as they are.
bool is_bare(std::string_view op) {
  for (const std::string_view part : {"empty", "resize", "as_strided", "set_", "record_stream"}) {
    if (op.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// What writes to memory without reading it: that may hold anything before.
bool overwrites(std::string_view op) {
  constexpr std::array<std::string_view, 11> kNames = {
      "uniform_",   "normal_",    "random_", "exponential_", "cauchy_", "log_normal_",
      "geometric_", "bernoulli_", "fill_",   "zero_",        "copy_"};
  return std::ranges::find(kNames, op) != kNames.end();
}

std::unique_ptr<const Op> describe(const char* name, const char* overload) {
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return nullptr;
  const std::string_view own = without_aten(name);
  const bool aten = own != name;
  auto op = std::make_unique<Op>(Op{.handle = *handle});
  const auto& schema = handle->schema();
  unsigned written = 0;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool writes = is_written(argument);
    const bool one = argument.type()->kind() == c10::TypeKind::TensorType;
    written += writes ? (one ? 1U : 2U) : 0U;  // a list is more than one
    // No schema says that running statistics are written to.
    if (writes || names_statistic(argument.name())) op->written.push_back(i);
    if (argument.name() == "dropout_p") op->dropout = i;
  }
  // Attention draws random numbers where it drops something alone.
  const bool seeded = handle->hasTag(at::Tag::nondeterministic_seeded);
  const bool random = seeded && op->dropout == kNoArgument;
  op->composite = handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  const bool computing = computes(own) || is_part(own);
  op->repeatable = aten && computing && !random && written <= 1;
  op->adds = op->repeatable && is_addition(own);
  op->overwrites = aten && overwrites(own);
  op->hands_on = is_bare(own) || (is_view(schema) && only_reads(schema));
  op->moves = aten && !computing && !op->composite && written == 0 && !seeded && !is_view(schema);
  return op;
}

template <typename Use>
void for_tensors(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) use(tensor);
  }
}

}  // namespace

c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  const auto& one = change;
  if (value.isTensor()) return one(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = one(tensor);
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      const at::Tensor changed = one(tensor.value_or(at::Tensor()));
      tensors.push_back(tensor ? std::optional(changed) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

const Op* op_of(const at::RecordFunction& call) {
  // The two strings are those of the schema, which stays: their places stand for it.
  using Key = std::pair<const char*, const char*>;
  thread_local std::map<Key, const Op*> known;
  const Key key{call.name(), call.overload_name()};
  const auto [found, fresh] = known.try_emplace(key, nullptr);
  if (!fresh) return found->second;
  if (std::string_view(key.first).find("::") != std::string_view::npos)
    found->second = describe(key.first, key.second).release();  // for good, as the schema is
  return found->second;
}

bool may_rerun(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.repeatable) return false;
  if (op.dropout < arguments.size()) {
    const c10::IValue& share = arguments[op.dropout];
    if (share.isDouble() && share.toDouble() > 0) return false;
  }
  bool some = false;
  bool all = true;
  for (const c10::IValue& argument : arguments) {
    for_tensors(argument, [&](const at::Tensor& tensor) {
      // A number of Python is a float64 tensor here, and a tensor of its op computes in its own
      // dtype.
      if (!tensor.defined() || torch_private::is_wrapped_number(tensor)) return;
      const DType dtype = dtype_of(tensor);
      some = some || may_be_cast(dtype);
      all = all && dtype != DType::Float64 && is_ordinary(tensor) &&
            (tensor.layout() == at::kStrided) && !tensor.is_meta();
    });
  }
  return some && all;
}

bool begins_backward(const Op& op, c10::ArrayRef<at::Tensor> inputs) {
  return op.handle.schema().name() == "aten::ones_like" && !inputs.empty() &&
         inputs.front().numel() == 1 && inputs.front().requires_grad() &&
         inputs.front().is_floating_point();
}

std::vector<c10::IValue> kept(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::IValue> copies(arguments.begin(), arguments.end());
  if (op.written.empty()) return copies;
  const OutOfSight out_of_sight;
  for (const std::size_t i : op.written) {
    if (i >= arguments.size() || !arguments[i].isTensor() || !arguments[i].toTensor().defined())
      continue;
    const at::Tensor& written = arguments[i].toTensor();
    const at::Tensor copy = written.clone();
    // Other arguments may look at the same memory: x.mul_(x).
    for (c10::IValue& other : copies) {
      if (!other.isTensor() || !other.toTensor().defined()) continue;
      if (other.toTensor().is_same(written)) {
        other = copy;
      } else if (other.toTensor().is_alias_of(written)) {
        other = other.toTensor().clone();
      }
    }
  }
  return copies;
}

std::optional<torch::jit::Stack> rerun(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                       const Change& change, std::uint64_t* ns) {
  try {
    const OutOfSight out_of_sight;
    torch::jit::Stack stack;
    const auto changed = [&](const at::Tensor& tensor) {
      const bool changes = tensor.defined() && tensor.is_floating_point() &&
                           !torch_private::is_wrapped_number(tensor);
      return changes ? change(tensor) : tensor;
    };
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue value = with_tensors(arguments[i], changed);
      const bool written = std::ranges::find(op.written, i) != op.written.end();
      if (written && value.isTensor() && value.toTensor().defined() &&
          value.toTensor().is_alias_of(arguments[i].toTensor())) {
        value = value.toTensor().clone();  // another run must find it as it was
      }
      stack.push_back(std::move(value));
    }
    const std::uint64_t start = ns == nullptr ? 0 : now_ns();
    op.handle.callBoxed(stack);
    if (ns != nullptr) *ns += now_ns() - start;
    return stack;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

at::Tensor addend_of(const Op& op, c10::ArrayRef<c10::IValue> arguments, const Change& change) {
  if (arguments.size() < 2 || !arguments[0].isTensor() || !arguments[1].isTensor()) return {};
  if (torch_private::is_wrapped_number(arguments[1].toTensor())) return {};
  std::vector<c10::IValue> from_zero(arguments.begin(), arguments.end());
  {
    const OutOfSight out_of_sight;
    from_zero.front() = at::zeros_like(arguments.front().toTensor(), at::kFloat);
  }
  const auto results = rerun(op, from_zero, change);
  if (!results || results->empty() || !results->front().isTensor()) return {};
  return results->front().toTensor();
}

std::vector<Compared> compared(const std::vector<c10::IValue>& results,
                               const torch::jit::Stack& others) {
  std::vector<Compared> pairs;
  const auto a = tensors_in(results);
  const auto b = tensors_in(others);
  if (a.size() != b.size()) return pairs;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() && b[i].defined() && eligible(dtype_of(a[i])) && eligible(dtype_of(b[i])) &&
        a[i].sizes() == b[i].sizes()) {
      pairs.push_back({a[i], b[i]});
    }
  }
  return pairs;
}

at::Tensor in_float32(const at::Tensor& tensor) {
  return may_be_cast(dtype_of(tensor)) ? tensor.detach().to(at::kFloat) : tensor;
}

// Nor do the modes of the user see it.
OutOfSight::OutOfSight()
    : no_listener_(false),
      no_autocast_(
          autocast::kAllKeys |
          c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}

}  // namespace habana_mp::evidence
