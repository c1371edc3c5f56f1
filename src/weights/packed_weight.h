// Weights in the layout that oneDNN's matrix product reads. torch gives it plain ones, which it
// lays out anew at every call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "policy/dtype.h"

namespace habana_mp {

// How a copy in the weight cache lies in memory: as its weight, or packed for an op.
enum class Layout : std::uint8_t {
  Plain,
  Linear,  // outputs x inputs, of linear
  Addmm,   // inputs x outputs, of addmm
};

// Whether this torch and this CPU have a packed product of the dtype.
bool can_pack(DType dtype);

// The packed copy of a plain low one, for a layout other than Plain.
at::Tensor pack(const at::Tensor& low, Layout layout);

// Whether the copy was packed of a weight of these sizes, which lies without gaps.
bool is_packed_from(const at::Tensor& copy, Layout layout, const at::Tensor& weight);

// The memory of a packed copy; null where torch does not tell.
const void* packed_data(const at::Tensor& copy);

// Bytes that a copy takes, its padding included.
std::size_t bytes_of_copy(const at::Tensor& copy);

// rows x inputs by a packed weight, plus a bias that may be undefined.
at::Tensor packed_product(const at::Tensor& rows, const at::Tensor& packed, const at::Tensor& bias);

}  // namespace habana_mp
