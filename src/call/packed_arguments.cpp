#include "call/packed_arguments.h"

#include <ATen/Context.h>

#include <atomic>

#include "base/clock.h"
#include "call/cast_argument.h"
#include "cast/dtypes.h"
#include "cast/node.h"
#include "cast/numbers.h"
#include "cast/tensors.h"
#include "listen/child_casts.h"
#include "listen/watched_call.h"

namespace habana_mp {
namespace {

std::atomic<bool> packing = true;

bool is_of(const at::Tensor& tensor, DType to) {
  const DType dtype = number_dtype(tensor);
  return (dtype == DType::Float32 || dtype == to) && tensor.is_cpu() && is_ordinary(tensor);
}

}  // namespace

void set_packing(bool on) { packing = on; }

bool may_be_packed(const PackedOperands& call) {
  const auto& [input, weight, bias, to, caller] = call;
  return packing.load(std::memory_order_relaxed) &&
         !listen::anyone_hears(listen::Hears::Numbers) &&  // those of casts too
         is_of(weight, to) && is_of(input, to) && (!bias.defined() || is_of(bias, to)) &&
         WeightCache::accepts(weight, to) && !records_graph(input) && !records_graph(weight) &&
         !(bias.defined() && records_graph(bias)) && input.numel() > 0;
}

bool onednn_packs(DType to) { return at::globalContext().userEnabledMkldnn() && can_pack(to); }

bool is_bias_of(const at::Tensor& bias, std::int64_t outputs, DType to) {
  return !bias.defined() || (bias.dim() == 1 && bias.size(0) == outputs &&
                             (bias.is_contiguous() || number_dtype(bias) != to));
}

PackedArguments packed_arguments(const PackedOperands& call, const Form& form, bool contiguous,
                                 at::IntArrayRef images) {
  PackedArguments result;
  bool was_cached = false;
  listen::Observer* observer = listen::observer_of_call();
  const std::uint64_t start = observer == nullptr ? 0 : now_ns();
  result.weight =
      weight_cache().packed(call.weight, call.to, form, call.caller, was_cached, images);
  if (!result) return result;
  listen::count_in_parent();
  const std::uint64_t ns = observer == nullptr ? 0 : now_ns() - start;
  result.input = in_dtype(call.input, call.to, contiguous);
  if (observer != nullptr) {
    observer->casts(
        call.weight, result.weight.copy,
        {DType::Float32, call.to, was_cached, bytes_of(call.weight, call.to), start, ns});
  }
  result.bias = in_dtype(call.bias, call.to, /*contiguous=*/true);
  return result;
}

}  // namespace habana_mp
