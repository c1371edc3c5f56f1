#include "evidence/inner_gradients.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <mutex>
#include <unordered_set>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

struct Lock {
  ForkSafeMutex mutex;
};

// Of what all of them have: two backward passes may run through one graph at once.
Lock& lock() { return process_wide<Lock>(); }

// Of a node that hands a gradient on to the result. It keeps nothing once nobody waits for that.
class Adds final : public torch::autograd::FunctionPostHook {
 public:
  Adds(const std::shared_ptr<InnerGradients>& to, std::size_t edge) : to_(to), edge_(edge) {}

  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    if (edge_ >= outputs.size() || !outputs[edge_].defined() || c10::GradMode::is_enabled())
      return outputs;
    if (const auto to = to_.lock()) to->add(outputs[edge_]);
    return outputs;
  }

 private:
  std::weak_ptr<InnerGradients> to_;
  std::size_t edge_;
};

}  // namespace

void InnerGradients::add(const at::Tensor& gradient) {
  const int pass = torch_private::graph_task();
  const std::lock_guard guard(lock().mutex);
  parts_.emplace_back(pass, gradient);
}

at::Tensor InnerGradients::without(const at::Tensor& gradient) {
  const int pass = torch_private::graph_task();
  std::vector<at::Tensor> parts;
  {
    const std::lock_guard guard(lock().mutex);
    std::erase_if(parts_, [&](const auto& part) {
      if (part.first == pass) parts.push_back(part.second);
      return part.first == pass;  // what a pass has left that raised goes with the graph
    });
  }
  const OutOfSight out_of_sight;
  at::Tensor left = gradient;
  for (const at::Tensor& part : parts) left = left.sub(part);
  return left;
}

std::shared_ptr<InnerGradients> inner_gradients(const at::Tensor& result,
                                                c10::ArrayRef<at::Tensor> results,
                                                std::uint64_t since) {
  const Node* target = result.grad_fn().get();
  if (target == nullptr) return nullptr;
  std::shared_ptr<InnerGradients> found;
  std::vector<Node*> waiting;
  std::unordered_set<const Node*> seen{target};
  const auto visit = [&](Node* node) {
    if (node != nullptr && node->sequence_nr() >= since && seen.insert(node).second)
      waiting.push_back(node);
  };
  for (const at::Tensor& other : results) {
    if (other.defined()) visit(other.grad_fn().get());
  }
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    for (std::size_t i = 0; i < node->num_outputs(); ++i) {
      const auto& edge = node->next_edge(i);
      if (edge.function.get() != target) {
        visit(edge.function.get());
      } else if (edge.input_nr == result.output_nr()) {
        if (!found) found = std::make_shared<InnerGradients>();
        node->add_post_hook(std::make_unique<Adds>(found, i));
      }
    }
  }
  return found;
}

}  // namespace habana_mp::evidence
