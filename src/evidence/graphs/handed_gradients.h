// Gradients on their way from one node of autograd to the next: what each of those that use a
// result hands back to it, before torch adds these up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace habana_mp::evidence {

// A tensor that is no leaf, and what is done with each gradient that comes to it: on any thread,
// without the GIL; what it throws is lost.
struct Receiver {
  at::Tensor tensor;
  std::function<void(const at::Tensor& gradient)> use;
};

// From the nodes of `results` on, down to those of `inputs` and of the receivers, and to those with
// a lower number than `since`. Backward passes that make a graph of gradients are left out. How
// many places there are that gradients come from.
std::size_t on_gradients(c10::ArrayRef<at::Tensor> results, c10::ArrayRef<at::Tensor> inputs,
                         std::uint64_t since, const std::vector<Receiver>& receivers);

// Of what has made a tensor; 0 for a leaf.
std::uint64_t node_number(const at::Tensor& tensor);

}  // namespace habana_mp::evidence
