// A call of an op made again from the same inputs in another dtype, out of sight: no autograd, no
// autocast, no listener, and nothing of the caller's is written to.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

#include "base/clock.h"
#include "cast/numbers.h"
#include "cast/storage_check.h"
#include "report/values.h"

namespace habana_mp::evidence {

inline constexpr std::size_t kNoArgument = static_cast<std::size_t>(-1);

// Which ops may be run again to measure them, and why others may not (D50): a table of names over
// what the schema of an op says (evidence/repeatable.cpp). Running again must be safe for every op
// of torch that the table does not name; tests/evidence/rerun/test_repeatable.py looks at all of
// them.

// Of every call of the op; None where a call may be made again.
report::Unmeasured why_not_again(const c10::OperatorHandle& op);

// Whether the op runs Python for a tensor with these keys: what that does nobody knows.
bool runs_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys);

// With each instrument that begins, so that kernels which were registered meanwhile are seen.
void forget_kernels();

// What must be known of an op to run it again.
struct Op {
  c10::OperatorHandle handle;
  // Why no call of it may be made again.
  report::Unmeasured why_not = report::Unmeasured::None;
  bool computing = false;   // as policies mean it, or a part of what does
  bool repeatable = false;  // it computes, and may be run again
  bool composite = false;   // it is made of other ops
  bool moves = false;       // it only moves numbers about, into its first argument or a new one
  bool adds = false;        // it adds something to its first argument
  bool redraws = false;     // where it draws, numbers that do not depend on its dtype
  bool overwrites = false;  // it writes to its first argument, whose numbers it does not read
  bool hands_on = false;    // its result is a view, or memory that nothing has been written to
  c10::SmallVector<std::size_t, 2> written{};  // arguments that a run may change: to be copied
  std::size_t dropout = kNoArgument;           // the argument that says how much is dropped
  std::size_t train = kNoArgument;             // or whether something is
  std::size_t handed_back = kNoArgument;  // a result that is an argument: cuDNN's block of weights
};

// Whether the numbers are there to be read by ATen: of a strided tensor, not one of a compiler, of
// a transform, of a subclass with Python of its own, or of memory that was given back (FSDP does
// so).
inline bool is_readable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta() &&
         is_ordinary(tensor) && holds_numbers(tensor);
}

// The op that is called, found once; null for what is no op of the dispatcher.
const Op* op_of(const at::RecordFunction& call);

// Whether a dtype of these arguments is one that casts go from and to.
bool has_floating(c10::ArrayRef<c10::IValue> arguments);

// Why a call cannot be made again: its op, what it drops, or its tensors, which must be plain ones,
// none float64. `redraws`: it would be made with the same random numbers.
report::Unmeasured why_not_again(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                 bool redraws = false);

// Whether a call that computes can be made again: with it, at least one tensor is floating.
bool may_rerun(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// Whether the op makes the one that a backward pass begins with: the loss is its argument.
bool begins_backward(const Op& op, c10::ArrayRef<at::Tensor> inputs);

// The arguments as they are now; of those that the op may write to, and of what else lies in their
// memory, copies.
std::vector<c10::IValue> kept(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// The results, or nothing where the op raises. `change` gives the tensor to take for a floating
// one; what the op writes to is a copy of that. `ns`: how long the op takes alone.
using Change = c10::function_ref<at::Tensor(const at::Tensor&)>;
std::optional<torch::jit::Stack> rerun(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                       const Change& change, std::uint64_t* ns = nullptr);

// What an op that adds has added to its first argument, in float32; undefined where the op raises,
// and for a number of Python, such as the eps of a norm, which may be as small as it likes.
at::Tensor addend_of(const Op& op, c10::ArrayRef<c10::IValue> arguments, const Change& change);

// What a call has returned, but for what it was given.
std::vector<c10::IValue> results_of(const Op& op, std::vector<c10::IValue> returned);

// One result of a call, beside that of another run of it.
struct Compared {
  at::Tensor result, other;
};

// The floating results of two runs, where they are of one form; empty where they are not.
std::vector<Compared> compared(const std::vector<c10::IValue>& results,
                               const torch::jit::Stack& others);

// The argument with other tensors in it: `change` is called with each of them in turn, also with
// those that are undefined.
c10::IValue with_tensors(const c10::IValue& value, const Change& change);

// The numbers alone, in a dtype that casts are made to.
at::Tensor in_dtype(const at::Tensor& tensor, at::ScalarType dtype);

// As it is where it is no number that casts are made from.
at::Tensor in_float32(const at::Tensor& tensor);

// What runs inside is seen by nobody, and what it warns of is not heard.
class OutOfSight {
 public:
  OutOfSight();

 private:
  Aside aside_;
  at::RecordFunctionGuard no_listener_;
  c10::WarningUtils::WarningHandlerGuard no_warning_;
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_;
};

}  // namespace habana_mp::evidence
