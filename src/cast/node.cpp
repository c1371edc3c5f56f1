#include "cast/node.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <string>

#include "base/torch_private.h"
#include "base/torch_private_python.h"
#include "cast/numbers.h"
#include "listen/watched_call.h"

namespace habana_mp {
namespace {

using torch::autograd::variable_list;
using torch_private::CastNode;

// Null while nobody listens to calls.
listen::Observer* observer() {
  return listen::anyone_hears(listen::Hears::Calls) ? listen::observer.load() : nullptr;
}

std::uint64_t origin_here() {
  listen::Observer* here = observer();
  return here == nullptr ? 0 : here->origin_here();
}

// With `strides` the gradient is a weight's, of which there is one in each step.
at::Tensor cast_gradient(const at::Tensor& gradient, at::ScalarType type, at::IntArrayRef strides) {
  const DType from = dtype_of(gradient), to = dtype_of_type(type);
  if (!eligible(from) || !eligible(to) || from == to || !is_ordinary(gradient)) {
    return gradient.to(type);
  }
  return cast_ordinary(gradient, to, strides, strides.empty() ? Lifetime::Graph : Lifetime::Step);
}

// torch's node of a cast in all that the compiler asks of it (compiled autograd); what differs is
// how the gradient is computed outside the compiler.
struct CopyBackwards final : CastNode {
  static void* operator new(std::size_t bytes) { return allocate_node(bytes); }
  static void operator delete(void* node) { free_node(node); }

  std::string name() const override { return compiled ? CastNode::name() : "CopyBackwards"; }

  // Compiled autograd knows torch's node by its name.
  variable_list apply_with_saved(const variable_list& inputs,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    compiled = true;
    const auto restore = c10::make_scope_exit([this] { compiled = false; });
    return CastNode::apply_with_saved(inputs, saved);
  }

  variable_list apply(variable_list&& grads) override {
    if (weight != nullptr) {
      if (const WeightDone done = weight_done.load(std::memory_order_relaxed)) done(weight);
    }
    if (!grads[0].defined() || !task_should_compute_output(0)) return variable_list(1);
    const at::ScalarType to = c10::typeMetaToScalarType(self_options.dtype());
    variable_list result(1);
    const auto cast = [&] { return cast_gradient(grads[0], to, strides); };
    listen::Observer* here = origin == 0 ? nullptr : observer();
    result[0] =
        here == nullptr ? cast() : here->cast_back(origin, grads[0], dtype_of_type(to), cast);
    return result;
  }

  // Of the source, where the gradient is to be laid out like it: AccumulateGrad takes a gradient in
  // the layout of its leaf as it is and copies any other. Empty: as the gradient lies.
  at::DimVector strides;
  const c10::StorageImpl* weight = nullptr;  // to be compared, not to be followed
  bool compiled = false;
  std::uint64_t origin = origin_here();
};

}  // namespace

at::Tensor cast_ordinary(const at::Tensor& source, DType to, at::IntArrayRef strides,
                         Lifetime lifetime) {
  at::Tensor result = cast_numbers(source, to, strides, lifetime);
  if (records_graph(source)) record_backward(source, result);
  return result;
}

void record_backward(const at::Tensor& source, const at::Tensor& result,
                     const c10::StorageImpl* weight) {
  using Pointer = decltype(torch::autograd::Edge::function);
  auto* node = new CopyBackwards;
  const Pointer pointer = torch_private::as_pointer<Pointer>(node);
  node->set_next_edges(torch::autograd::collect_next_edges(source));
  node->self_options = source.options();
  if (source.is_leaf() && source.is_non_overlapping_and_dense()) node->strides = source.strides();
  node->weight = weight;
  torch::autograd::set_history(result, pointer);
}

void register_copy_backwards() {
  static PyTypeObject type;
  torch_private::register_node_type(typeid(CopyBackwards), type, "CopyBackwards");
  // So that isinstance finds it there: torch looks for its own types by module.
  pybind11::module_::import("torch.autograd.graph")
      .attr("Node")
      .attr("register")(pybind11::handle(reinterpret_cast<PyObject*>(&type)));
}

}  // namespace habana_mp
