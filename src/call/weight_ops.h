// The ops of ours in traced code: products that take a weight in float32 and cast it when they run,
// by the weight cache. A graph that holds them casts no weight at every call, and sees every change
// that the cache sees. Each is an op of aten with three arguments more. `int8` is the list of an op
// whose weight is in 8 bits, weight_int8 or int8; `cached`: whether the cache keeps that copy.
//
//   habana_mp::linear(Tensor input, Tensor weight, Tensor? bias=None, *, ScalarType weight_dtype,
//                     str int8="", bool cached=True)
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

// Whether a compiler traces the tensor in place of a float32 parameter on the CPU, or of a low one
// or a view.
bool is_traced_parameter(const at::Tensor& tensor, bool or_low_or_view = false);
// The same of a parameter that is large enough for the cache. With one of them, an op of ours casts
// the small ones of its call, too.
bool is_traced_weight(const at::Tensor& tensor);

}  // namespace habana_mp
