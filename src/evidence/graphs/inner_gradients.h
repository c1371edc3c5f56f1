// Gradients that reach a result of a call through another result of the same call. An op that is
// made of others has such results: the cell state of an LSTM cell, of which the hidden state is
// made. The error of the other one has that part already.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace habana_mp::evidence {

class InnerGradients {
 public:
  void add(const at::Tensor& gradient);

  // The gradient of a backward pass without what has been added in it.
  at::Tensor without(const at::Tensor& gradient);

 private:
  std::vector<std::pair<int, at::Tensor>> parts_;  // by the backward pass
};

// Of one of the results of a call; null where no other is made of it. `since`: the sequence number
// of the first node of autograd that the call may have made.
std::shared_ptr<InnerGradients> inner_gradients(const at::Tensor& result,
                                                c10::ArrayRef<at::Tensor> results,
                                                std::uint64_t since);

}  // namespace habana_mp::evidence
