// A tensor's place in the graph of autograd, from which a backward pass of ours can begin. It keeps
// that graph alive.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

namespace habana_mp::evidence {

class GraphPlace {
 public:
  explicit GraphPlace(const at::Tensor& tensor);

  // A pass that adds no gradient to any tensor and leaves the graph as it is. False, and nothing
  // has run, where the graph has been freed, or would run Python.
  bool run_backward(const at::Tensor& gradient) const;

 private:
  torch::autograd::Edge edge_;
};

}  // namespace habana_mp::evidence
