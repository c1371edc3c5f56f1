// The tensors of a call, for the report.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

namespace habana_mp {

using Tensors = c10::ArrayRef<at::Tensor>;

// Those among the arguments or the results of an op, in lists too.
c10::SmallVector<at::Tensor, 8> tensors_in(c10::ArrayRef<c10::IValue> values);

// Bits of dtype_bit().
unsigned dtypes_of(Tensors tensors);

}  // namespace habana_mp
