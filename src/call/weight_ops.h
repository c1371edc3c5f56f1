// The ops of ours in traced code: products that take a weight in float32 and cast it when they run,
// by the weight cache. A graph that holds them casts no weight at every call, and sees every change
// that the cache sees. Each is an op of aten with one argument more, `weight_dtype`:
//
//   habana_mp::linear(Tensor input, Tensor weight, Tensor? bias=None, *, ScalarType weight_dtype)
//
// They are whole products, and no cast that returns the copy, because a compiler plans the memory
// of what an op returns: it may give it to the next result, which would overwrite the cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace habana_mp {

// Registers them. They stay until the process ends: graphs may run at any time.
void register_weight_ops();

// Their names, which are the base names of the ops of aten.
std::vector<std::string> weight_op_names();
// By the name of the op of aten, with its overload: "conv_transpose2d.input".
std::optional<c10::OperatorHandle> weight_op(std::string_view name);

// Whether the tensor stands in a compiler's trace for a parameter in float32 on the CPU, and for
// one that the cache takes. An op of ours casts parameters of any size, where it has one that is
// cached.
bool is_traced_parameter(const at::Tensor& tensor);
bool is_traced_weight(const at::Tensor& tensor);

}  // namespace habana_mp
