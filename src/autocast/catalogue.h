// The ops of the dispatcher, as the installed torch has them. Knows nothing of policies.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "autocast/form.h"
#include "call/int8_call.h"
#include "call/packed_call.h"
#include "policy/op_traits.h"

namespace habana_mp::autocast {

struct Op {
  c10::OperatorHandle handle;
  std::string name;  // "mm", "pow.Tensor_Scalar"
  Form form;
  std::size_t index;  // among all
  // Of src/policy/op_traits.h:
  bool computes, product, may_lack_low_kernel, refuses_mixed, norm;
  Insides insides;
  Layout layout;  // of a weight that is packed for it
  Int8Op int8;
  std::optional<c10::OperatorHandle> weight_op;  // that of call/weight_ops.h
  bool registered = false;                       // our kernel
};

// Every op that a policy may name, in one order for the whole process. Those that write to an
// argument are none: autocast leaves them alone (F85, F86).
struct Catalogue {
  Catalogue();

  std::deque<Op> ops;  // kernels keep references
  // By each name of a list that decides it.
  std::unordered_map<std::string, std::vector<std::size_t>> by_name;
};

Catalogue& catalogue();

// Every aten op: base names with the largest number of tensor arguments that an overload takes (a
// tensor list counts as two, out= arguments do not count), and overload names ("pow.Tensor_Scalar")
// with their own number.
std::unordered_map<std::string, int> aten_tensor_arguments();

}  // namespace habana_mp::autocast
