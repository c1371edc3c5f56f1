#include "call/packed_call.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <optional>

#include "base/clock.h"
#include "call/cast_argument.h"
#include "cast/dtypes.h"
#include "cast/numbers.h"
#include "cast/tensors.h"
#include "scope/state.h"
#include "watch/observer.h"
#include "watch/probe.h"

namespace habana_mp {
namespace {

std::atomic<Packing> packing = Packing::Equal;

bool records_graph(const ProductCall& call) {
  return c10::GradMode::is_enabled() &&
         (call.input.requires_grad() || call.weight.requires_grad() ||
          (call.bias.defined() && call.bias.requires_grad()));
}

bool is_of(const at::Tensor& tensor, DType to) {
  const DType dtype = number_dtype(tensor);
  return (dtype == DType::Float32 || dtype == to) && tensor.is_cpu() && is_ordinary(tensor);
}

// Whether the input lies row after row when it is low. torch computes others in another way.
bool will_be_contiguous(const at::Tensor& input, DType to) {
  return input.is_contiguous() || (number_dtype(input) != to && copied_by_matmul(input));
}

Packing packing_here() {
  const Packing asked = packing.load(std::memory_order_relaxed);
  const bool may_differ = asked == Packing::Fastest;
  return may_differ && at::globalContext().deterministicAlgorithms() ? Packing::Equal : asked;
}

// The shape of a call that a packed weight may serve. Nothing of torch's dispatcher is called
// before the tensors are known to be ordinary.
std::optional<Shape> shape_of(const ProductCall& call) {
  const auto& [layout, input, weight, bias, to, caller] = call;
  if (layout == Layout::Plain || packing.load(std::memory_order_relaxed) == Packing::Off ||
      !is_of(weight, to) || !is_of(input, to) || weight.dim() != 2 || !weight.is_contiguous() ||
      !WeightCache::accepts(weight, to) || records_graph(call)) {
    return std::nullopt;
  }
  const bool turned = layout == Layout::Addmm;
  const std::int64_t outputs = weight.size(turned ? 1 : 0);
  const std::int64_t inputs = weight.size(turned ? 0 : 1);
  if (input.numel() == 0 || input.dim() == 0 || input.size(-1) != inputs) return std::nullopt;
  if (turned && (input.dim() != 2 || !bias.defined())) return std::nullopt;
  if (bias.defined() && (!is_of(bias, to) || bias.dim() != 1 || bias.size(0) != outputs)) {
    return std::nullopt;
  }
  if (!will_be_contiguous(input, to) || !at::globalContext().userEnabledMkldnn() || !can_pack(to)) {
    return std::nullopt;
  }
  return Shape{.layout = layout,
               .to = to,
               .rows = input.numel() / inputs,
               .inputs = inputs,
               .outputs = outputs,
               .bias = bias.defined(),
               .threads = at::get_num_threads(),
               .packing = packing_here()};
}

at::Tensor low(const at::Tensor& tensor, DType to) {
  if (!tensor.defined() || number_dtype(tensor) == to) return tensor;
  return cast_argument(tensor, to, {.cached = true, .contiguous = true});
}

}  // namespace

void set_packing(Packing to) { packing = to; }

Layout packed_layout(std::string_view op) {
  return op == "linear" ? Layout::Linear : op == "addmm" ? Layout::Addmm : Layout::Plain;
}

at::Tensor call_packed(const ProductCall& call) {
  // A probe looks at the numbers of casts.
  const auto shape = watch::probe() == nullptr ? shape_of(call) : std::nullopt;
  if (!shape) return {};
  const c10::impl::ExcludeDispatchKeyGuard no_casts(autocast::kAllKeys);
  const By way = chosen(*shape);
  if (way == By::PlainCopy) return {};
  bool was_cached = false;
  const std::uint64_t start = watch::in_watched_call() ? now_ns() : 0;
  const WeightCache::Packed packed =
      weight_cache().packed(call.weight, call.to, call.layout, call.caller, was_cached);
  if (!packed.copy.defined()) return {};
  const std::uint64_t ns = start == 0 ? 0 : now_ns() - start;
  const auto weight_cast = [&] {
    if (start == 0) return;
    watch::notify_cast(
        call.weight, packed.copy,
        {DType::Float32, call.to, was_cached, bytes_of(call.weight, call.to), start, ns});
  };
  const at::Tensor input = low(call.input, call.to);
  weight_cast();
  const at::Tensor bias = low(call.bias, call.to);
  // For profilers, which see no op of this name otherwise.
  RECORD_FUNCTION("habana_mp::packed_product", c10::ArrayRef<const c10::IValue>{});
  return product(way, input, packed, bias);
}

}  // namespace habana_mp
