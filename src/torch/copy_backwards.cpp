#include "torch/copy_backwards.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/python_cpp_function.h>

#include <string>
#include <utility>

#include "torch/tensor_cast.h"

namespace habana_mp {
namespace {

using torch::autograd::variable_list;

// torch's node of a cast in all that the compiler asks of it (compiled autograd); what differs is
// how the gradient is computed outside the compiler.
struct CopyBackwards final : torch::autograd::generated::ToCopyBackward0 {
  std::string name() const override { return "CopyBackwards"; }

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined() || !task_should_compute_output(0)) return variable_list(1);
    return {
        cast_to(grads[0], dtype_of_type(c10::typeMetaToScalarType(self_options.dtype())), strides)};
  }

  // Of the source, where the gradient is to be laid out like it: AccumulateGrad takes a gradient in
  // the layout of its leaf as it is and copies any other. Empty: as the gradient lies.
  at::DimVector strides;
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

void record_backward(const at::Tensor& source, const at::Tensor& result) {
  using Pointer = decltype(torch::autograd::Edge::function);
  auto* node = new CopyBackwards;
  const Pointer pointer = as_pointer<Pointer>(node);
  node->set_next_edges(torch::autograd::collect_next_edges(source));
  node->self_options = source.options();
  if (source.is_leaf()) node->strides = source.strides();
  torch::autograd::set_history(result, pointer);
}

void register_copy_backwards() {
  static PyTypeObject type;
  torch::autograd::_initFunctionPyTypeObject(type, "CopyBackwards", nullptr, nullptr);
  torch::autograd::registerCppFunction(typeid(CopyBackwards), &type);
}

}  // namespace habana_mp
