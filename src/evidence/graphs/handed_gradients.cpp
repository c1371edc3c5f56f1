#include "evidence/graphs/handed_gradients.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <exception>
#include <memory>
#include <unordered_set>
#include <utility>

namespace habana_mp::evidence {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

class Hands final : public torch::autograd::FunctionPostHook {
 public:
  Hands(std::size_t edge, std::function<void(const at::Tensor&)> use)
      : edge_(edge), use_(std::move(use)) {}

  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    if (edge_ >= outputs.size() || !outputs[edge_].defined() || c10::GradMode::is_enabled())
      return outputs;
    try {
      use_(outputs[edge_]);
    } catch (const std::exception&) {
    }
    return outputs;
  }

 private:
  std::size_t edge_;
  std::function<void(const at::Tensor&)> use_;
};

const Node* node_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.grad_fn().get() : nullptr;
}

}  // namespace

std::uint64_t node_number(const at::Tensor& tensor) {
  const Node* node = node_of(tensor);
  return node == nullptr ? 0 : node->sequence_nr();
}

std::size_t on_gradients(c10::ArrayRef<at::Tensor> results, c10::ArrayRef<at::Tensor> inputs,
                         std::uint64_t since, const std::vector<Receiver>& receivers) {
  std::size_t hooks = 0;
  std::vector<Node*> waiting;
  std::unordered_set<const Node*> seen;
  for (const at::Tensor& input : inputs) seen.insert(node_of(input));
  for (const Receiver& each : receivers) seen.insert(node_of(each.tensor));
  const auto visit = [&](Node* node) {
    if (node != nullptr && node->sequence_nr() >= since && seen.insert(node).second)
      waiting.push_back(node);
  };
  for (const at::Tensor& result : results) {
    if (result.defined()) visit(result.grad_fn().get());
  }
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    for (std::size_t i = 0; i < node->num_outputs(); ++i) {
      const auto& edge = node->next_edge(i);
      visit(edge.function.get());
      for (const Receiver& each : receivers) {
        if (edge.function.get() != node_of(each.tensor) || edge.input_nr != each.tensor.output_nr())
          continue;
        node->add_post_hook(std::make_unique<Hands>(i, each.use));
        ++hooks;
      }
    }
  }
  return hooks;
}

}  // namespace habana_mp::evidence
