// The errors of calls, and what is said of them: an op that a policy refuses, a device that has no
// kernel of an op for a low dtype, and the note on an error that blames a low dtype.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <pybind11/pybind11.h>

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "policy/policy.h"

namespace habana_mp {

// The refusal of an op that a policy lists as an error (D31, F184 to F186, F190): what the
// RuntimeError says. `op`: a name of the op, with its overload or without. `rule`: the text of the
// rule, which names the list.
std::string refusal(std::string_view op, std::string_view rule);

// Calls that fail because the device has no kernel of the op for a low dtype (D42). Both front ends
// then run the op in float32.

// Whether the message of an error blames a low dtype. torch has no type of error for it.
bool blames_low_dtype(std::string_view message);
// Whether a kernel threw such an error. One that Python raised is none of it.
bool lacks_low_kernel(const std::exception& error);

// "no bfloat16 kernel", or "no kernel for bfloat16 with float32" where the arguments differ. `low`:
// what the policy runs its lower list in, which is meant where no argument is low.
std::string no_kernel_text(std::span<const Arg> arguments, DType low);

// A norm with its input in a low dtype beside float32 weights (D14). An accelerator that has
// refused one refuses that norm each time, and to hear it once more takes longer than the norm.
struct NormCall {
  std::string_view norm;
  c10::DeviceType device;
  Rule rule;
  std::span<const Arg> arguments;
  bool explicit_dtype;
};

// The decision about a norm, or float32 where such a call has failed before. A tracer or a
// transform is to see what the rule wants, whatever ran before it: `is_ordinary` says of the
// tensors that there is none.
Decision decide_norm(const NormCall& call, c10::function_ref<bool()> is_ordinary);
// Of a call of ordinary tensors that has failed and then ran in float32.
void remember_refusal(const NormCall& call);

// The note on an error that blames a low dtype and cannot be helped (D42): which op made the tensor
// low, which list line says so and which edit helps. What Python knows of it is asked of Python:
// habana_mp/_watch/error_note.py registers a function when it is imported.

// The text of a Python error; "" if its __str__ raises or the text is no UTF-8.
std::string message_of(const pybind11::object& error);

void set_error_note(pybind11::function function);

// The op of the lower list that ran last on this thread; its name lives as long as the process.
inline constinit thread_local const std::string* last_lower = nullptr;

// Adds it to the Python error that is set. With the GIL. `op` is the name of the op that failed.
void add_error_note(const std::string& op, std::span<const at::Tensor> tensors);

// Adds it to an error that leaves a block, where it blames a low dtype: a region of `policy`, or
// one of disable_casts, in that region or (null) under convert. Throws nothing: the block is still
// to be left.
void add_note_at_end(const pybind11::object& error, const std::shared_ptr<const Policy>& policy,
                     bool casts_off = false) noexcept;

}  // namespace habana_mp
