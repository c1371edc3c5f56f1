#include "call/packed_call.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "call/cast_argument.h"
#include "cast/node.h"
#include "cast/numbers.h"
#include "scope/regions.h"
#include "watch/observer.h"
#include "watch/probe.h"

namespace habana_mp {
namespace {

std::atomic<Packing> packing = Packing::Equal;

// What decides whether a packed weight is used. Rows above 32 count as the next power of two.
struct Shape {
  Layout layout;
  DType to;
  std::int64_t rows, inputs, outputs;
  bool bias;
  int threads;
  Packing packing;

  friend auto operator<=>(const Shape&, const Shape&) = default;
};

struct Choices {
  std::map<Shape, bool> packed;
  ForkSafeMutex mutex;
};

std::int64_t counted_rows(std::int64_t rows) {
  return rows <= 32 ? rows
                    : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

at::Tensor plain_product(Layout layout, const at::Tensor& rows, const at::Tensor& weight,
                         const at::Tensor& bias) {
  if (layout == Layout::Addmm) return at::addmm(bias, rows, weight);
  return at::linear(rows, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

// Numbers that are no multiples of each other, so that another order of additions shows.
at::Tensor made_up(std::int64_t rows, std::int64_t columns, DType dtype) {
  return (at::arange(rows * columns, at::kDouble) * 0.7548776662466927)
      .frac()
      .sub(0.5)
      .to(scalar_type(dtype))
      .view({rows, columns});
}

// Runs both once, and again while that is cheap, the shortest time of each.
bool is_faster_packed(const Shape& shape, const at::Tensor& weight) {
  const c10::InferenceMode no_grad;
  const at::Tensor low = cast_numbers(weight, shape.to, {}, Lifetime::Call);
  const at::Tensor packed = pack(low, shape.layout);
  const at::Tensor rows = made_up(shape.rows, shape.inputs, shape.to);
  const at::Tensor bias =
      shape.bias ? made_up(1, shape.outputs, shape.to).view({shape.outputs}) : at::Tensor();
  const auto plain_call = [&] { return plain_product(shape.layout, rows, low, bias); };
  const auto packed_call = [&] { return packed_product(rows, packed, bias); };
  if (!at::equal(plain_call(), packed_call()) &&
      (shape.packing == Packing::Equal || at::globalContext().deterministicAlgorithms())) {
    return false;
  }
  constexpr std::uint64_t kEnough = 5'000'000;  // ns
  constexpr int kMostRounds = 5;
  std::uint64_t plain_ns = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t packed_ns = plain_ns;
  const std::uint64_t start = now_ns();
  for (int round = 0; round < kMostRounds; ++round) {
    const std::uint64_t before = now_ns();
    plain_call();
    const std::uint64_t between = now_ns();
    packed_call();
    const std::uint64_t after = now_ns();
    plain_ns = std::min(plain_ns, between - before);
    packed_ns = std::min(packed_ns, after - between);
    if (after - start > kEnough) break;
  }
  // It saves work at best, so what is slower by a little is a disturbed measurement.
  return packed_ns < plain_ns + plain_ns / 16;
}

bool chosen_packed(const Shape& shape, const at::Tensor& weight) {
  if (shape.packing == Packing::Always) return true;
  auto& choices = process_wide<Choices>();
  {
    const std::lock_guard lock(choices.mutex);
    const auto found = choices.packed.find(shape);
    if (found != choices.packed.end()) return found->second;
  }
  const bool packed = is_faster_packed(shape, weight);
  const std::lock_guard lock(choices.mutex);
  return choices.packed.try_emplace(shape, packed).first->second;
}

bool records_graph(const ProductCall& call) {
  return c10::GradMode::is_enabled() &&
         (call.input.requires_grad() || call.weight.requires_grad() ||
          (call.bias.defined() && call.bias.requires_grad()));
}

bool is_of(const at::Tensor& tensor, DType to) {
  const DType dtype = number_dtype(tensor);
  return (dtype == DType::Float32 || dtype == to) && tensor.is_cpu() && is_ordinary(tensor);
}

// The shape of a call that a packed weight may serve.
std::optional<Shape> shape_of(const ProductCall& call) {
  const auto& [layout, input, weight, bias, to, caller] = call;
  if (layout == Layout::Plain || packing.load(std::memory_order_relaxed) == Packing::Off ||
      !can_pack(to) || !is_of(weight, to) || !is_of(input, to) || weight.dim() != 2 ||
      !weight.is_contiguous() || !WeightCache::accepts(weight, to) || records_graph(call)) {
    return std::nullopt;
  }
  const bool turned = layout == Layout::Addmm;
  const std::int64_t outputs = weight.size(turned ? 1 : 0);
  const std::int64_t inputs = weight.size(turned ? 0 : 1);
  if (input.numel() == 0 || input.dim() == 0 || input.size(-1) != inputs) return std::nullopt;
  if (turned ? input.dim() != 2 || !bias.defined() : false) return std::nullopt;
  if (bias.defined() && (!is_of(bias, to) || bias.dim() != 1 || bias.size(0) != outputs)) {
    return std::nullopt;
  }
  // torch adds the bias to the low product of a batch that does not lie row after row. One that is
  // cast is cast to lie so.
  if (bias.defined() && input.dim() > 2 && number_dtype(input) == to && !input.is_contiguous()) {
    return std::nullopt;
  }
  if (!at::globalContext().userEnabledMkldnn()) return std::nullopt;
  const std::int64_t rows = counted_rows(input.numel() / inputs);
  return Shape{layout,
               to,
               rows,
               inputs,
               outputs,
               bias.defined(),
               at::get_num_threads(),
               packing.load(std::memory_order_relaxed)};
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
  if (!chosen_packed(*shape, call.weight)) return {};
  bool was_cached = false;
  const std::uint64_t start = watch::in_watched_call() ? now_ns() : 0;
  const at::Tensor packed =
      weight_cache().packed(call.weight, call.to, call.layout, call.caller, was_cached);
  if (!packed.defined()) return {};
  const std::uint64_t ns = start == 0 ? 0 : now_ns() - start;
  const auto weight_cast = [&] {
    if (start == 0) return;
    watch::notify_cast(
        call.weight, packed,
        {DType::Float32, call.to, was_cached, bytes_of(call.weight, call.to), start, ns});
  };
  const at::Tensor input = low(call.input, call.to);
  weight_cast();
  const at::Tensor bias = low(call.bias, call.to);
  // For profilers, which see no op of this name otherwise.
  RECORD_FUNCTION("habana_mp::packed_product", c10::ArrayRef<const c10::IValue>{});
  if (input.dim() == 2) return packed_product(input, packed, bias);
  at::DimVector sizes(input.sizes());
  sizes.back() = shape->outputs;
  return packed_product(input.reshape({-1, shape->inputs}), packed, bias).view(sizes);
}

}  // namespace habana_mp
