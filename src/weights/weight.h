// Which tensors are weights to the cache, and who holds them. Knows nothing of copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace habana_mp {

// The fewest numbers of a weight. Measured: of fewer than 4096, a cast costs no more than the
// look-up and the tensor over the copy. Convolutions gain more where they are packed: 6 to 14 us of
// 19 to 95 at 128 to 1728 numbers.
constexpr std::int64_t smallest_weight(std::int64_t dims) { return dims < 4 ? 4096 : 256; }

// Whether an ordinary tensor (cast/numbers.h) is a weight.
bool may_be_weight(const at::Tensor& tensor);
// The same of any tensor.
bool is_weight(const at::Tensor& tensor);

// Whether somebody holds a weight beside torch itself, who may write to it, such as a DLPack
// capsule. The caller has it from its Python object and holds it no further.
bool is_held_elsewhere(const at::Tensor& weight);

}  // namespace habana_mp
