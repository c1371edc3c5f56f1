// The note on an error that blames a low dtype and cannot be helped (D42): which op made the tensor
// low, which list line says so and which edit helps. What Python knows of it is asked of Python:
// habana_mp/_watch/error_note.py registers a function when it is imported.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <span>
#include <string>

#include "policy/policy.h"

namespace habana_mp {

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
