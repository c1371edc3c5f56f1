#include "evidence/graphs/graph_place.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/python_headers.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <vector>

#include "base/torch_private.h"

namespace habana_mp::evidence {
namespace {

using torch::autograd::Node;

template <typename Hook>
bool is_of_cpp(const std::unique_ptr<Hook>& hook) {
  const Hook& seen = *hook;
  const std::string_view type = typeid(seen).name();
  return type.find("habana_mp") != type.npos || torch_private::is_hook_of_cpp(type);
}

// Whether a pass of ours may run it: no Python, and no hook that is not of C++.
bool may_run(Node& node) {
  const bool leaf = node.num_outputs() == 0;
  return !torch_private::is_python_node(typeid(node).name()) && node.retains_grad_hooks().empty() &&
         std::ranges::all_of(node.tensor_pre_hooks(),
                             is_of_cpp<torch::autograd::FunctionPreHook>) &&
         // Those of a leaf see sums of gradients, of which there are none.
         (leaf ||
          (std::ranges::all_of(node.pre_hooks(), is_of_cpp<torch::autograd::FunctionPreHook>) &&
           std::ranges::all_of(node.post_hooks(), is_of_cpp<torch::autograd::FunctionPostHook>)));
}

// Where the graph ends; nothing where a part of it may not run.
std::optional<torch::autograd::edge_list> ends_of(Node* root) {
  torch::autograd::edge_list ends;
  std::vector<Node*> waiting{root};
  std::unordered_set<const Node*> seen{root};
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    if (!may_run(*node)) return std::nullopt;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (!edge.is_valid() || !seen.insert(edge.function.get()).second) continue;
      waiting.push_back(edge.function.get());
      if (edge.function->num_outputs() == 0) ends.push_back(edge);
    }
  }
  return ends;
}

}  // namespace

GraphPlace::GraphPlace(const at::Tensor& tensor)
    : edge_(torch::autograd::impl::gradient_edge(tensor)) {}

bool GraphPlace::run_backward(const at::Tensor& gradient) const {
  const auto ends = edge_.is_valid() ? ends_of(edge_.function.get()) : std::nullopt;
  if (!ends || ends->empty()) return false;
  try {
    torch::autograd::Engine::get_default_engine().execute({edge_}, {gradient}, /*keep_graph=*/true,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/false, *ends);
  } catch (...) {
    // What Python has raised the engine leaves behind, too.
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyErr_Clear();
    PyGILState_Release(gil);
    return false;
  }
  return true;
}

}  // namespace habana_mp::evidence
