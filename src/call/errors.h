// The errors of calls, and what is said of them: an op that a policy refuses, a device that has no
// kernel of an op for a low dtype, and the note on an error that blames a low dtype.
#pragma once

#include <ATen/core/Tensor.h>
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

// Norms with an input in a low dtype beside float32 weights (D14): a device that has refused one
// refuses all, and to hear that from it once more takes longer than the norm. The low dtype of such
// a call, after the casts; Other of any other call.
DType mixed_norm(std::string_view op, const Decision& decision, std::span<const Arg> args);
bool is_refused(std::string_view norm, DType low, c10::DeviceType device);
// Of a call that has failed and ran in float32.
void remember_refusal(std::string_view norm, DType low, c10::DeviceType device);

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
