#include "call/weight_ops.h"

#include <ATen/Operators.h>
#include <c10/core/GradMode.h>
#include <pybind11/pybind11.h>
#include <torch/library.h>

#include <map>
#include <type_traits>
#include <utility>

#include "base/torch_private.h"
#include "base/torch_private_python.h"
#include "call/cast_argument.h"
#include "call/int8_call.h"
#include "call/int8_gradients.h"
#include "call/packed_call.h"
#include "cast/dtypes.h"
#include "cast/node.h"
#include "cast/numbers.h"
#include "cast/tensors.h"
#include "scope/regions.h"
#include "weights/weight.h"
#include "weights/weight_cache.h"

namespace habana_mp {
namespace {

at::Tensor lower(const at::Tensor& tensor, at::ScalarType to) {
  TORCH_CHECK_TYPE(to == at::kBFloat16 || to == at::kHalf,
                   "weight_dtype must be torch.bfloat16 or torch.float16, not ", to);
  if (!tensor.defined() || tensor.scalar_type() != at::kFloat) return tensor;
  at::Tensor result = cast_argument(tensor, dtype_of_type(to), {.cached = true});
  // As for the tensors of the weight cache: matmul would take a product with a batch apart.
  if (!c10::GradMode::is_enabled() && may_be_traced(tensor)) result.set_requires_grad(true);
  return result;
}

std::optional<at::Tensor> lower(const std::optional<at::Tensor>& tensor, at::ScalarType to) {
  if (!tensor) return std::nullopt;
  return lower(*tensor, to);
}

template <typename Argument>
const Argument& lower(const Argument& argument, at::ScalarType) {
  return argument;
}

// Calls `visit` with the tensors among the arguments.
template <typename Visit, typename... Args>
bool any_tensor(const Visit& visit, const Args&... args) {
  const auto one = [&](const auto& argument) {
    using Argument = std::decay_t<decltype(argument)>;
    if constexpr (std::is_same_v<Argument, at::Tensor>) {
      return argument.defined() && visit(argument);
    } else if constexpr (std::is_same_v<Argument, std::optional<at::Tensor>>) {
      return argument && argument->defined() && visit(*argument);
    } else {
      return false;
    }
  };
  return (one(args) || ...);
}

// "linear" of "aten::linear".
std::string base_name(std::string_view qualified) {
  return std::string(qualified.substr(qualified.find("::") + 2));
}

c10::OperatorHandle find(const std::string& base) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("habana_mp::" + base).c_str(), "");
}

using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                          at::ScalarType, std::string_view, bool);

// A traced linear of a batch that it would copy, as at::linear computes it: a product, and then the
// bias. So the compiler sees the copy and the addition, and makes each with what is beside it.
std::optional<at::Tensor> linear_apart(const c10::TypedOperatorHandle<Linear>& whole,
                                       const at::Tensor& input, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias, at::ScalarType to) {
  if (!bias || !bias->defined() || !may_be_traced(input) || !copied_when_traced(input))
    return std::nullopt;
  return whole.call(input.contiguous(), weight, std::nullopt, to, {}, /*cached=*/true) +
         bias->to(to);
}

constexpr auto kCaller = WeightCache::Caller::Dispatcher;

template <typename AtenOp>
constexpr bool kPacked =
    std::is_same_v<AtenOp, at::_ops::linear> || std::is_same_v<AtenOp, at::_ops::addmm> ||
    std::is_same_v<AtenOp, at::_ops::conv2d> || std::is_same_v<AtenOp, at::_ops::conv3d>;

// The product with a packed weight, where it can be. Undefined for the ops that have none.
template <typename AtenOp, typename... Args>
  requires(!kPacked<AtenOp>)
at::Tensor call_packed(AtenOp, const Args&...) {
  return {};
}

at::Tensor call_packed(at::_ops::linear, const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::ScalarType to) {
  const at::Tensor added = bias.value_or(at::Tensor());
  return packed_product(Layout::Linear, {input, weight, added, dtype_of_type(to), kCaller});
}

at::Tensor call_packed(at::_ops::addmm, const at::Tensor& bias, const at::Tensor& input,
                       const at::Tensor& weight, const at::Scalar& beta, const at::Scalar& alpha,
                       at::ScalarType to) {
  if (!beta.equal(1) || !alpha.equal(1)) return {};
  return packed_product(Layout::Addmm, {input, weight, bias, dtype_of_type(to), kCaller});
}

template <typename AtenOp>
  requires std::is_same_v<AtenOp, at::_ops::conv2d> || std::is_same_v<AtenOp, at::_ops::conv3d>
at::Tensor call_packed(AtenOp, const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       const c10::SymInt& groups, at::ScalarType to) {
  const auto known = [](c10::SymIntArrayRef numbers) { return c10::asIntArrayRefSlowOpt(numbers); };
  if (!known(stride) || !known(padding) || !known(dilation) || groups.is_symbolic()) return {};
  const at::Tensor added = bias.value_or(at::Tensor());
  return packed_convolution(
      {input, weight, added, dtype_of_type(to), kCaller},
      {*known(padding), *known(stride), *known(dilation), groups.as_int_unchecked()});
}

// The product with the weight in 8 bits. Undefined for ops that have none, and where sizes are such
// as the op refuses. `whole`, where it is not empty: a trace records that, which is the op itself,
// and a graph of it.
class Int8Ways {
 public:
  Int8Ways(std::string_view list, at::ScalarType to, bool cached, WholeOp whole = {})
      : activations_(list == action_name(Action::Int8)),
        cached_(cached),
        to_(dtype_of_type(to)),
        whole_(std::move(whole)) {
    TORCH_CHECK_VALUE(activations_ || list == action_name(Action::WeightInt8),
                      "int8 must be '', 'weight_int8' or 'int8', not '", list, "'");
  }

  template <typename AtenOp, typename... Args>
  at::Tensor operator()(AtenOp, const Args&...) const {
    return {};
  }
  at::Tensor operator()(at::_ops::linear, const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias) const {
    const at::Tensor added = bias.value_or(at::Tensor());
    return product(Layout::Int8, of(input, weight, added));
  }
  template <typename AtenOp>
    requires std::is_same_v<AtenOp, at::_ops::addmm> || std::is_same_v<AtenOp, at::_ops::baddbmm>
  at::Tensor operator()(AtenOp, const at::Tensor& bias, const at::Tensor& input,
                        const at::Tensor& weight, const at::Scalar& beta,
                        const at::Scalar& alpha) const {
    return product(Layout::Int8Turned, of(input, weight, bias), beta, alpha);
  }
  template <typename AtenOp>
    requires std::is_same_v<AtenOp, at::_ops::mm> || std::is_same_v<AtenOp, at::_ops::matmul> ||
             std::is_same_v<AtenOp, at::_ops::bmm>
  at::Tensor operator()(AtenOp, const at::Tensor& input, const at::Tensor& weight) const {
    return product(Layout::Int8Turned, of(input, weight, none_));
  }
  template <typename AtenOp>
    requires std::is_same_v<AtenOp, at::_ops::conv1d> || std::is_same_v<AtenOp, at::_ops::conv2d> ||
             std::is_same_v<AtenOp, at::_ops::conv3d>
  at::Tensor operator()(AtenOp, const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                        const c10::SymInt& groups) const {
    const auto known = [](c10::SymIntArrayRef given) { return C10_AS_INTARRAYREF_SLOW(given); };
    const at::Tensor added = bias.value_or(at::Tensor());
    const Int8Convolution numbers{known(stride), known(padding), known(dilation),
                                  groups.guard_int(__FILE__, __LINE__), /*same=*/false};
    const Int8Operands call = of(input, weight, added);
    return whole_ ? traced_int8_convolution(call, numbers, whole_)
                  : int8_convolution(call, numbers);
  }

 private:
  at::Tensor product(Layout layout, const Int8Operands& call, const at::Scalar& beta = 1,
                     const at::Scalar& alpha = 1) const {
    return whole_ ? traced_int8_product(layout, call, whole_, beta, alpha)
                  : int8_product(layout, call, beta, alpha);
  }
  Int8Operands of(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) const {
    const auto caller = cached_ ? std::optional(kCaller) : std::nullopt;
    return {input, weight, bias, to_, activations_, caller};
  }

  bool activations_, cached_;
  DType to_;
  WholeOp whole_;
  at::Tensor none_;
};

template <typename AtenOp, typename Signature>
struct WeightOp;

template <typename AtenOp, typename... Args>
struct WeightOp<AtenOp, at::Tensor(Args...)> {
  // The product itself: of weights that the cache holds, or as a tracer sees it.
  static at::Tensor compute(Args... args, at::ScalarType to, std::string_view int8, bool cached) {
    const c10::impl::ExcludeDispatchKeyGuard uncast(autocast::kAllKeys);
    if (!int8.empty()) {
      const bool computed =
          !any_tensor([](const at::Tensor& each) { return !is_ordinary(each); }, args...);
      if (!computed) return call_rounded(std::index_sequence_for<Args...>(), to, int8, args...);
      at::Tensor result = Int8Ways(int8, to, cached)(AtenOp(), args...);
      if (result.defined()) return result;
    }
    at::Tensor packed = call_packed(AtenOp(), args..., to);
    return packed.defined() ? packed : AtenOp::call(lower(args, to)...);
  }

  // For those who have no kernels: torch multiplies numbers that it has rounded.
  template <std::size_t... kPlaces>
  static at::Tensor call_rounded(std::index_sequence<kPlaces...>, at::ScalarType to,
                                 std::string_view int8, const Args&... args) {
    const Int8Op op = int8_op(base_name(AtenOp::name));
    std::int64_t dims = 0;
    const auto look = [&](const auto& argument, std::size_t place) {
      if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, at::Tensor>) {
        if (place == places_of(op).weight) dims = argument.dim();
      }
    };
    (look(args, kPlaces), ...);
    const auto rounded = [&]<typename Argument>(const Argument& argument, std::size_t place) {
      if constexpr (std::is_same_v<Argument, at::Tensor>) {
        if (op == Int8Op::None) return argument;
        if (place == places_of(op).weight) return rounded_weight(op, argument).to(to);
        if (place != places_of(op).input || int8 != action_name(Action::Int8)) return argument;
        return rounded_activations(op, argument.to(to), dims).to(to);
      } else {
        return argument;
      }
    };
    return AtenOp::call(lower(rounded(args, kPlaces), to)...);
  }

  // The same where autograd looks on. A graph keeps the op whole only where nobody will
  // differentiate it, and where its weights are the model's: the cache does not take copies of
  // them, and a program that was compiled ahead of time runs where nobody imports this package.
  static at::Tensor compute_with_autograd(Args... args, at::ScalarType to, std::string_view int8,
                                          bool cached) {
    const bool recorded = any_tensor(records_graph, args...);
    const bool has_tangent = any_tensor(torch_private::has_tangent, args...);
    const bool traced = any_tensor(may_be_traced, args...);
    const bool owns_weights = traced && torch_private::owns_weights();
    const auto whole = [&] { return handle().call(args..., to, int8, cached); };
    if (recorded && traced && !int8.empty() && !has_tangent && !owns_weights) {
      at::Tensor result = Int8Ways(int8, to, cached, whole)(AtenOp(), args...);
      if (result.defined()) return result;
    }
    if (recorded || has_tangent || owns_weights) return compute(args..., to, int8, cached);
    if constexpr (std::is_same_v<AtenOp, at::_ops::linear>) {
      if (!int8.empty()) {
        // A bias is added before the result is rounded: no addition of its own.
      } else if (auto result = linear_apart(handle(), args..., to))
        return *result;
    }
    // With views as autograd knows them: by them matmul asks whether the weight requires grad.
    const at::AutoDispatchBelowAutograd below;
    return whole();
  }

  static auto handle() {
    using Signature = at::Tensor(Args..., at::ScalarType, std::string_view, bool);
    static const auto found = find(base_name(AtenOp::name)).template typed<Signature>();
    return found;
  }

  // That of aten with our arguments, which go by keyword and are the last. They have no defaults: a
  // graph would not hold those, and Inductor's cache on disk, which knows a graph of a region by
  // its text, would give code of an older release that calls an op with fewer arguments.
  static std::string schema() {
    std::string text = AtenOp::schema_str;
    text = base_name(AtenOp::name) + text.substr(text.find('('));
    const bool keywords = text.find("*, ") != std::string::npos;
    text.insert(text.rfind(") ->"), std::string(keywords ? "" : ", *") +
                                        ", ScalarType weight_dtype, str int8, bool cached");
    return text;
  }

  static void add_to(torch::Library& library) {
    const std::string name = base_name(AtenOp::name);
    library.def(schema().c_str());
    library.impl(name.c_str(),
                 torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &compute));
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd, &compute_with_autograd));
    // vmap takes the product apart.
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::FuncTorchBatched, &compute));
  }
};

// By the name of aten's op, with its overload.
using Table = std::map<std::string, void (*)(torch::Library&), std::less<>>;

const Table& table() {
  static const Table ops = [] {
    Table found;
    const auto add = [&]<typename AtenOp>() {
      const std::string overload = AtenOp::overload_name;
      const std::string name = base_name(AtenOp::name);
      found[overload.empty() ? name : name + "." + overload] =
          &WeightOp<AtenOp, typename AtenOp::schema>::add_to;
    };
#define HABANA_MP_WEIGHT_OP(op) add.template operator()<at::_ops::op>();
#include "call/weight_ops.inc"
#undef HABANA_MP_WEIGHT_OP
    return found;
  }();
  return ops;
}

}  // namespace

void register_weight_ops() {
  static auto* library = [] {
    auto* made =
        new torch::Library(torch::Library::FRAGMENT, "habana_mp", std::nullopt, __FILE__, __LINE__);
    for (const auto& [name, add_to] : table()) add_to(*made);
    made->def(
        "dequantized(Tensor weight, *, ScalarType dtype, bool turned, bool cached) -> Tensor");
    made->impl("dequantized",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &dequantized_weight));
    return made;
  }();
  static_cast<void>(library);
}

std::vector<std::string> weight_op_names() {
  std::vector<std::string> names;
  for (const auto& row : table()) names.push_back(row.first.substr(0, row.first.find('.')));
  return names;
}

std::optional<c10::OperatorHandle> weight_op(std::string_view name) {
  const auto found = table().find(name);
  if (found == table().end()) return std::nullopt;
  return find(found->first.substr(0, found->first.find('.')));
}

bool is_traced_parameter(const at::Tensor& tensor, bool or_low_or_view) {
  // CPU: what a graph of CUDA would record of the cache has not been tried.
  if (!tensor.defined() || !tensor.is_cpu() || !may_be_traced(tensor)) return false;
  const DType dtype = number_dtype(tensor);
  if (dtype != DType::Float32 && !(or_low_or_view && may_be_low(dtype))) {
    return false;
  }
  const pybind11::gil_scoped_acquire gil;
  if (!is_fake(tensor)) return false;
  const auto is_parameter = [](const at::Tensor& traced) {
    const at::Tensor fake = torch_private::behind_functional(traced);
    return fake.is_leaf() && (fake.requires_grad() || torch_private::stands_for_parameter(fake));
  };
  return is_parameter(tensor) || (or_low_or_view && tensor.is_leaf() && tensor.is_view() &&
                                  is_parameter(at::Tensor(viewed_by(tensor))));
}

bool is_traced_weight(const at::Tensor& tensor) {
  return is_traced_parameter(tensor) && WeightCache::accepts_size(tensor.sym_numel(), tensor.dim());
}

}  // namespace habana_mp
