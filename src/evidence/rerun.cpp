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
#include "evidence/draws.h"
#include "policy/op_traits.h"
#include "policy/roles.h"
#include "scope/state.h"

namespace habana_mp::evidence {

using report::Unmeasured;

namespace {

bool has_part(std::string_view op, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(
      parts, [&](std::string_view part) { return op.find(part) != std::string_view::npos; });
}

// Of ops that computes() does not know, because no user calls them: what a backward pass is made
// of, and what attention, norms and convolutions are.
bool is_part(std::string_view op) {
  return has_part(op, {"_backward", "softmax", "scaled_dot_product", "convolution", "_norm", "_rnn",
                       "addmm", "bilinear", "embedding_bag", "dropout", "rrelu", "trilinear"});
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

// Of warnings.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

c10::WarningHandler& silent() {
  static Silent handler;
  return handler;
}

// What makes memory and fills it with nothing, or hands numbers on as they are.
bool is_bare(std::string_view op) {
  return has_part(op, {"empty", "resize", "as_strided", "set_", "record_stream"});
}

// What writes to memory without reading it: that may hold anything before.
bool overwrites(std::string_view op) {
  constexpr std::array<std::string_view, 11> kNames = {
      "uniform_",   "normal_",    "random_", "exponential_", "cauchy_", "log_normal_",
      "geometric_", "bernoulli_", "fill_",   "zero_",        "copy_"};
  return std::ranges::find(kNames, op) != kNames.end();
}

// Whether the argument, of an op with this name, says how much is dropped: of dropout(input, p,
// train), or of recurrent layers.
bool drops(std::string_view op, const c10::Argument& argument) {
  return argument.name() == "dropout" || op.find("dropout") != std::string_view::npos;
}

std::unique_ptr<const Op> describe(const char* name, const char* overload) {
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return nullptr;
  const std::string_view own = without_aten(name);
  const bool aten = own != name;
  auto op = std::make_unique<Op>(Op{.handle = *handle});
  const auto& schema = handle->schema();
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    // No schema says that running statistics are written to.
    if (is_written(argument) || names_statistic(argument.name())) op->written.push_back(i);
    if (argument.name() == "dropout_p") op->dropout = i;
    if (argument.name() == "train" && i > 0 && drops(own, schema.arguments()[i - 1])) op->train = i;
  }
  op->composite = handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  if (own == "_cudnn_rnn") op->handed_back = 4;
  op->why_not = why_not_again(*handle);
  op->computing = computes(own) || is_part(own);
  op->repeatable = op->computing && op->why_not == Unmeasured::None;
  op->adds = op->repeatable && is_addition(own);
  op->redraws = aten && draws_alike(own);
  op->overwrites = aten && overwrites(own);
  op->hands_on = is_bare(own) || (is_view(schema) && only_reads(schema));
  const bool in_place = op->written.size() == 1 && op->written.front() == 0;
  op->moves = !op->computing && op->why_not == Unmeasured::None && !op->composite &&
              (in_place || (op->written.empty() && !is_view(schema))) && !is_bare(own);
  return op;
}

bool drops_nothing(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.train == 0 || op.train >= arguments.size()) return false;
  const c10::IValue &p = arguments[op.train - 1], &train = arguments[op.train];
  return (train.isBool() && !train.toBool()) || (p.isDouble() && p.toDouble() == 0);
}

template <typename Use>
void for_tensors(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) use(tensor);
  }
}

bool is_on_cpu(c10::ArrayRef<c10::IValue> arguments) {
  bool all = true;
  for (const c10::IValue& argument : arguments) {
    for_tensors(argument, [&](const at::Tensor& tensor) {
      all = all && (!tensor.defined() || tensor.is_cpu());
    });
  }
  return all;
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
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (std::string_view(key.first).find("::") == std::string_view::npos) return nullptr;
  auto op = describe(key.first, key.second);
  // What is no op, such as a node of a backward pass, has a name of its own each time.
  if (op == nullptr) return nullptr;
  return known.emplace(key, op.release()).first->second;  // for good, as the schema is
}

bool has_floating(c10::ArrayRef<c10::IValue> arguments) {
  bool some = false;
  for (const c10::IValue& argument : arguments) {
    for_tensors(argument, [&](const at::Tensor& tensor) {
      some = some || (tensor.defined() && !torch_private::is_wrapped_number(tensor) &&
                      may_be_cast(dtype_of(tensor)));
    });
  }
  return some;
}

Unmeasured why_not_again(const Op& op, c10::ArrayRef<c10::IValue> arguments, bool redraws) {
  // Of those with a reserve, no call: also where they drop nothing.
  const bool draws_nothing = op.why_not == Unmeasured::Random && drops_nothing(op, arguments);
  const bool again = redraws && op.redraws && is_on_cpu(arguments);
  if (op.why_not != Unmeasured::None && !draws_nothing &&
      !(again && op.why_not == Unmeasured::Random))
    return op.why_not;
  if (!again && op.dropout < arguments.size()) {
    const c10::IValue& share = arguments[op.dropout];
    if (share.isDouble() && share.toDouble() > 0) return Unmeasured::Random;
  }
  bool plain = true;
  c10::DispatchKeySet keys;
  for (const c10::IValue& argument : arguments) {
    for_tensors(argument, [&](const at::Tensor& tensor) {
      // A number of Python is a float64 tensor here, and a tensor of its op computes in its own
      // dtype.
      if (!tensor.defined() || torch_private::is_wrapped_number(tensor)) return;
      keys = keys | tensor.key_set();
      plain = plain && dtype_of(tensor) != DType::Float64 && is_readable(tensor);
    });
  }
  if (!plain) return Unmeasured::Tensors;
  return runs_python(op.handle, keys) ? Unmeasured::Library : Unmeasured::None;
}

bool may_rerun(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  return op.computing && has_floating(arguments) &&
         why_not_again(op, arguments) == Unmeasured::None;
}

bool begins_backward(const Op& op, c10::ArrayRef<at::Tensor> inputs) {
  return op.handle.schema().name() == "aten::ones_like" && !inputs.empty() &&
         inputs.front().numel() == 1 && inputs.front().requires_grad() &&
         inputs.front().is_floating_point();
}

std::vector<c10::IValue> kept(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::IValue> copies(arguments.begin(), arguments.end());
  if (op.written.empty()) return copies;
  std::vector<at::Tensor> written;
  for (const std::size_t i : op.written) {
    if (i >= arguments.size()) continue;
    for_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (tensor.defined()) written.push_back(tensor);
    });
  }
  const OutOfSight out_of_sight;
  // Other arguments may look at the same memory: x.mul_(x).
  const auto changes = [&](const at::Tensor& tensor) {
    return std::ranges::any_of(written, [&](const at::Tensor& each) {
      return tensor.is_same(each) ||
             (tensor.has_storage() && each.has_storage() && tensor.is_alias_of(each));
    });
  };
  for (c10::IValue& copy : copies) {
    copy = with_tensors(copy, [&](const at::Tensor& tensor) {
      // What cannot be read is not run again either.
      return is_readable(tensor) && changes(tensor) ? tensor.clone() : tensor;
    });
  }
  return copies;
}

std::vector<c10::IValue> results_of(const Op& op, std::vector<c10::IValue> returned) {
  if (op.handed_back < returned.size()) returned[op.handed_back] = at::Tensor();
  return returned;
}

std::optional<torch::jit::Stack> rerun(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                       const Change& change, std::uint64_t* ns) {
  try {
    const OutOfSight out_of_sight;
    torch::jit::Stack stack;
    const auto copy_of = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.clone() : tensor;
    };
    const auto changed = [&](const at::Tensor& tensor) {
      const bool changes = tensor.defined() && tensor.is_floating_point() &&
                           !torch_private::is_wrapped_number(tensor);
      return changes ? change(tensor) : tensor;
    };
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue value = with_tensors(arguments[i], changed);
      // Whoever else has it, be it the program or another run, must find it as it was.
      if (std::ranges::find(op.written, i) != op.written.end())
        value = with_tensors(value, copy_of);
      stack.push_back(std::move(value));
    }
    const std::uint64_t start = ns == nullptr ? 0 : now_ns();
    const Redrawn redrawn;
    op.handle.callBoxed(stack);
    if (ns != nullptr) *ns += now_ns() - start;
    if (!redrawn.as_many()) return std::nullopt;
    return results_of(op, std::move(stack));
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
        a[i].sizes() == b[i].sizes() && is_readable(a[i]) && is_readable(b[i])) {
      pairs.push_back({a[i], b[i]});
    }
  }
  return pairs;
}

at::Tensor in_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  const at::Tensor numbers = tensor.detach();
  const bool ours =
      numbers.scalar_type() != dtype && may_be_cast(dtype_of(numbers)) && is_ordinary(numbers);
  return ours ? cast_numbers(numbers, dtype_of_type(dtype), {}, Lifetime::Call) : numbers.to(dtype);
}

at::Tensor in_float32(const at::Tensor& tensor) {
  return may_be_cast(dtype_of(tensor)) ? in_dtype(tensor, at::kFloat) : tensor;
}

// Nor do the modes of the user see it.
OutOfSight::OutOfSight()
    : no_listener_(false),
      no_warning_(&silent()),
      no_autocast_(
          autocast::kAllKeys |
          c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}

}  // namespace habana_mp::evidence
