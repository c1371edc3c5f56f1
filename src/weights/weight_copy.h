// The copy of a weight: how it is made, whether it fits, and the tensors that are given out over
// its memory. Every use asks, so all of it is inline. Knows nothing of the cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "base/torch_private.h"
#include "cast/node.h"
#include "cast/numbers.h"
#include "weights/int8_weight.h"
#include "weights/packed_weight.h"

namespace habana_mp {

inline bool fits(const at::Tensor& copy, const Form& form, const at::Tensor& weight, DType to) {
  if (is_int8(form.layout)) return is_int8_of(copy, form.layout, weight);
  if (form.layout != Layout::Plain) {
    return copy.scalar_type() == scalar_type(to) && is_packed_from(copy, form, weight);
  }
  return number_dtype(copy) == to && copy.device() == weight.device() &&
         copy.sizes() == weight.sizes() && copy.strides() == weight.strides();
}

// A tensor that grad mode can use, wherever it is made; a plain one over `memory` if that is
// defined.
inline at::Tensor make_copy(const at::Tensor& weight, DType to, const Form& form, at::Tensor memory,
                            at::IntArrayRef images) {
  const c10::InferenceMode off(false);
  if (is_int8(form.layout)) return rounded_to_int8(weight, form.layout);
  if (form.layout != Layout::Plain)
    return pack(cast_numbers(weight, to, {}, Lifetime::Once), form, images);
  if (!memory.defined()) return cast_numbers(weight, to, {}, Lifetime::Step);
  cast_numbers_into(weight, memory);
  return memory;
}

// A tensor of its own over the memory of a copy.
inline at::Tensor tensor_over(const at::Tensor& copy, const at::Tensor& weight) {
  at::Tensor result = torch_private::alias_of(copy);
  if (!c10::GradMode::is_enabled()) {
    // matmul asks whether the weight requires grad before it folds a batch into one matrix, and is
    // many times slower where it does not. Where grad mode is off that has no other effect.
    result.set_requires_grad(true);
  } else if (weight.requires_grad()) {
    record_backward(weight, result, weight.storage().unsafeGetStorageImpl());
  }
  return result;
}

}  // namespace habana_mp
