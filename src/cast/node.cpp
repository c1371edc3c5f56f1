#include "cast/node.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/python_cpp_function.h>

#include <string>
#include <utility>

#include "watch/observer.h"
#include "cast/numbers.h"
#include "weights/weight_cache.h"

namespace habana_mp {
namespace {

using torch::autograd::variable_list;

// torch's node of a cast in all that the compiler asks of it (compiled autograd); what differs is
// how the gradient is computed outside the compiler.
struct CopyBackwards final : torch::autograd::generated::ToCopyBackward0 {
  static void* operator new(std::size_t bytes) { return allocate_node(bytes); }
  static void operator delete(void* node) { free_node(node); }

  std::string name() const override { return compiled ? ToCopyBackward0::name() : "CopyBackwards"; }

  // Compiled autograd knows torch's node by its name.
  variable_list apply_with_saved(const variable_list& inputs,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    compiled = true;
    const auto restore = c10::make_scope_exit([this] { compiled = false; });
    return ToCopyBackward0::apply_with_saved(inputs, saved);
  }

  variable_list apply(variable_list&& grads) override {
    if (cached != nullptr) weight_cache().end_backward(cached);
    if (!grads[0].defined() || !task_should_compute_output(0)) return variable_list(1);
    const DType to = dtype_of_type(c10::typeMetaToScalarType(self_options.dtype()));
    variable_list result(1);
    watch::tell_backward(origin, grads[0], to,
                            [&] { result[0] = cast_gradient(grads[0], to, strides); });
    return result;
  }

  // Of the source, where the gradient is to be laid out like it: AccumulateGrad takes a gradient in
  // the layout of its leaf as it is and copies any other. Empty: as the gradient lies.
  at::DimVector strides;
  const c10::StorageImpl* cached = nullptr;  // to be compared, not to be followed
  bool compiled = false;
  std::uint64_t origin = watch::origin_here();
};

// A node as an edge holds it: shared_ptr in torch 2.11, intrusive_ptr in 2.13.
template <typename Pointer, typename Node>
Pointer as_pointer(Node* node) {
  if constexpr (requires { Pointer::unsafe_steal_from_new(node); }) {
    return Pointer::unsafe_steal_from_new(node);
  } else {
    return Pointer(node, [](auto* last) { deleteNode(last); });
  }
}

}  // namespace

void record_backward(const at::Tensor& source, const at::Tensor& result,
                     const c10::StorageImpl* cached) {
  using Pointer = decltype(torch::autograd::Edge::function);
  auto* node = new CopyBackwards;
  const Pointer pointer = as_pointer<Pointer>(node);
  node->set_next_edges(torch::autograd::collect_next_edges(source));
  node->self_options = source.options();
  if (source.is_leaf() && source.is_non_overlapping_and_dense()) node->strides = source.strides();
  node->cached = cached;
  torch::autograd::set_history(result, pointer);
}

void register_copy_backwards() {
  static PyTypeObject type;
  torch::autograd::_initFunctionPyTypeObject(type, "CopyBackwards", nullptr, nullptr);
  torch::autograd::registerCppFunction(typeid(CopyBackwards), &type);
  // So that isinstance finds it there: torch looks for its own types by module.
  pybind11::module_::import("torch.autograd.graph")
      .attr("Node")
      .attr("register")(pybind11::handle(reinterpret_cast<PyObject*>(&type)));
}

}  // namespace habana_mp
