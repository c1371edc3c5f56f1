// What products and convolutions with a packed weight have in common: which tensors they take, and
// the casts of their arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "call/packed_choice.h"
#include "policy/dtype.h"
#include "weights/weight_cache.h"

namespace habana_mp {

// The tensors of a call whose rule takes float32 to `to`. The bias may be undefined.
struct PackedOperands {
  const at::Tensor& input;
  const at::Tensor& weight;
  const at::Tensor& bias;
  DType to;
  WeightCache::Caller caller;
};

// Whether a packed weight may serve the call as far as its tensors say: float32 or low, ordinary,
// on the CPU, the weight one that the cache takes, and no graph recorded. Calls nothing of torch's
// dispatcher.
bool may_be_packed(const PackedOperands& call);

// Whether oneDNN has packed weights of the dtype here, and the user has not switched it off.
bool onednn_packs(DType to);

// A bias that oneDNN may add to so many outputs, or none. It reads a low one number after number.
bool is_bias_of(const at::Tensor& bias, std::int64_t outputs, DType to);

// Whether copies are packed at all: from now on, in every thread.
void set_packing(bool on);

struct PackedArguments {
  at::Tensor input, bias;
  WeightCache::Packed weight;  // undefined where the op is to be called with a plain copy

  explicit operator bool() const { return weight.copy.defined(); }
};

// The arguments as they are computed with. Casts are passed on to the listeners. `contiguous`: of
// the input. `images`: of pack().
PackedArguments packed_arguments(const PackedOperands& call, const Form& form, bool contiguous,
                                 at::IntArrayRef images = {});

}  // namespace habana_mp
