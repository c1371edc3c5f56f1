#include "call/packed_call.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/strides.h>

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
#include <vector>

#include "base/clock.h"
#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "call/cast_argument.h"
#include "cast/node.h"
#include "cast/numbers.h"
#include "cast/parallel.h"
#include "kernels/cast_kernels.h"
#include "kernels/linear/linear.h"
#include "scope/regions.h"
#include "watch/observer.h"
#include "watch/probe.h"

namespace habana_mp {
namespace {

std::atomic<Packing> packing = Packing::Equal;

// What computes a product.
enum class By : std::uint8_t { PlainCopy, OneDnn, OurKernel };

// What the choice depends on. Rows above 32 count as the next power of two.
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
  std::map<Shape, By> made;
  ForkSafeMutex mutex;
};

// Measured: above, oneDNN is as fast.
constexpr std::int64_t kFewRows = 32;

std::int64_t counted_rows(std::int64_t rows) {
  return rows <= kFewRows
             ? rows
             : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

kernels::PackedWeight memory_of(const at::Tensor& packed) {
  return {static_cast<const std::uint16_t*>(packed_data(packed)),
          static_cast<std::size_t>(packed.size(0)), static_cast<std::size_t>(packed.size(1))};
}

bool has_kernel(const Shape& shape) {
  return shape.to == DType::BFloat16 && shape.rows <= kFewRows &&
         kernels::active() == kernels::Variant::Avx512Bf16 &&
         !kernels::splits_inputs(static_cast<std::size_t>(shape.rows),
                                 {nullptr, static_cast<std::size_t>(shape.outputs),
                                  static_cast<std::size_t>(shape.inputs)},
                                 static_cast<std::size_t>(shape.threads));
}

// Whether the packed copy of a plain weight, outputs x inputs, lies as our kernel reads it.
bool is_known(const at::Tensor& packed, const at::Tensor& plain) {
  const kernels::PackedWeight weight = memory_of(packed);
  return weight.data != nullptr &&
         kernels::is_packed(weight, bytes_of_copy(packed) / sizeof(std::uint16_t),
                            static_cast<const std::uint16_t*>(plain.const_data_ptr()),
                            plain.stride(0));
}

// The panels that are worth a thread: what takes it some 5 us, at the speed of its cache and of its
// arithmetic.
std::int64_t panels_of_thread(std::int64_t rows, std::int64_t inputs) {
  const double bytes = static_cast<double>(inputs) * 2 * kernels::PackedWeight::kPanel;
  const double seconds = bytes / 80e9 + bytes * static_cast<double>(rows) / 4.8e11;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(5e-6 / seconds));
}

at::Tensor few_rows(const at::Tensor& input, const at::Tensor& packed, const at::Tensor& bias) {
  const at::Tensor x = input.is_contiguous() ? input : input.contiguous();
  const at::Tensor added = bias.defined() ? bias.contiguous() : bias;
  const kernels::PackedWeight weight = memory_of(packed);
  const auto inputs = static_cast<std::int64_t>(weight.inputs);
  const std::int64_t rows = x.numel() / inputs;
  at::DimVector sizes(x.sizes());
  sizes.back() = static_cast<std::int64_t>(weight.outputs);
  at::Tensor result = torch_private::empty_strided_on_cpu(sizes, c10::contiguous_strides(sizes),
                                                          c10::GetCPUAllocator(), at::kBFloat16);
  const kernels::LinearTask task{
      .x = static_cast<const std::uint16_t*>(x.const_data_ptr()),
      .x_row_stride = static_cast<std::ptrdiff_t>(inputs),
      .rows = static_cast<std::size_t>(rows),
      .weight = weight,
      .bias = bias.defined() ? static_cast<const std::uint16_t*>(added.const_data_ptr()) : nullptr,
      .out = static_cast<std::uint16_t*>(result.mutable_data_ptr()),
      .out_row_stride = static_cast<std::ptrdiff_t>(weight.outputs),
      .first_panel = 0,
      .last_panel = weight.panels(),
      .sum = kernels::inputs_of_sum(static_cast<std::size_t>(rows), weight.inputs),
  };
  const auto panels = static_cast<std::int64_t>(weight.panels());
  const std::int64_t grain = panels_of_thread(rows, inputs);
  in_parallel(0, panels, grain, [&task](std::int64_t first, std::int64_t last) {
    kernels::LinearTask share = task;
    share.first_panel = static_cast<std::size_t>(first);
    share.last_panel = static_cast<std::size_t>(last);
    kernels::linear(share);
  });
  return result;
}

at::Tensor by_onednn(const at::Tensor& input, const at::Tensor& packed, const at::Tensor& bias) {
  if (input.dim() == 2) return packed_product(input, packed, bias);
  at::DimVector sizes(input.sizes());
  sizes.back() = packed.size(0);
  return packed_product(input.reshape({-1, packed.size(1)}), packed, bias).view(sizes);
}

at::Tensor by_plain_copy(Layout layout, const at::Tensor& rows, const at::Tensor& weight,
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

// The ways to compute the product of one shape, on made-up rows and a real weight.
class Trial {
 public:
  Trial(const Shape& shape, const at::Tensor& weight)
      : shape_(shape),
        plain_(cast_numbers(weight, shape.to, {}, Lifetime::Call)),
        packed_(pack(plain_, shape.layout)),
        rows_(made_up(shape.rows, shape.inputs, shape.to)) {
    if (shape.bias) bias_ = made_up(1, shape.outputs, shape.to).view({shape.outputs});
  }

  // The fastest, among those of equal numbers where these are asked for.
  By fastest() const {
    std::vector<By> ways{By::PlainCopy};
    if (is_allowed(By::OneDnn)) ways.push_back(By::OneDnn);
    if (has_kernel(shape_) && is_known(packed_, outputs_by_inputs()) && is_allowed(By::OurKernel)) {
      ways.push_back(By::OurKernel);
    }
    constexpr std::uint64_t kEnough = 5'000'000;  // ns
    constexpr int kMostRounds = 7;
    std::array<std::uint64_t, 3> taken;
    taken.fill(std::numeric_limits<std::uint64_t>::max());
    const std::uint64_t start = now_ns();
    for (int round = 0; round < kMostRounds && now_ns() - start < kEnough; ++round) {
      for (const By way : ways) {
        const std::uint64_t begun = now_ns();
        run(way, bias_);
        auto& best = taken[static_cast<std::size_t>(way)];
        best = std::min(best, now_ns() - begun);
      }
    }
    // Packing saves work at best, so what is slower by a little is a disturbed measurement.
    auto& plain = taken[static_cast<std::size_t>(By::PlainCopy)];
    plain += plain / 16;
    return static_cast<By>(std::ranges::min_element(taken) - taken.begin());
  }

 private:
  at::Tensor outputs_by_inputs() const {
    return shape_.layout == Layout::Addmm ? plain_.t().contiguous() : plain_;
  }

  at::Tensor run(By way, const at::Tensor& bias) const {
    if (way == By::PlainCopy) return by_plain_copy(shape_.layout, rows_, plain_, bias);
    return way == By::OneDnn ? by_onednn(rows_, packed_, bias) : few_rows(rows_, packed_, bias);
  }

  bool is_allowed(By way) const {
    if (shape_.packing == Packing::Fastest && !at::globalContext().deterministicAlgorithms()) {
      return true;
    }
    const at::Tensor plain = run(By::PlainCopy, bias_);
    if (!at::equal(plain, run(way, bias_))) return false;
    // Most differences of the sums are lost when they are rounded; taken off a result they show.
    const at::Tensor off = plain[0].neg();
    return !shape_.bias || at::equal(run(By::PlainCopy, off), run(way, off));
  }

  const Shape& shape_;
  const at::Tensor plain_, packed_, rows_;
  at::Tensor bias_;
};

// Without a measurement: the layout of our kernel is looked for once.
By unmeasured(const Shape& shape) {
  static const bool known = [] {
    const at::Tensor plain = made_up(130, 97, DType::BFloat16);
    return is_known(pack(plain, Layout::Linear), plain);
  }();
  return has_kernel(shape) && known ? By::OurKernel : By::OneDnn;
}

By chosen(const Shape& shape, const at::Tensor& weight) {
  auto& choices = process_wide<Choices>();
  {
    const std::lock_guard lock(choices.mutex);
    const auto found = choices.made.find(shape);
    if (found != choices.made.end()) return found->second;
  }
  const c10::InferenceMode no_grad;
  const By way =
      shape.packing == Packing::Always ? unmeasured(shape) : Trial(shape, weight).fastest();
  const std::lock_guard lock(choices.mutex);
  return choices.made.try_emplace(shape, way).first->second;
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
  const By way = chosen(*shape, call.weight);
  if (way == By::PlainCopy) return {};
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
  return way == By::OneDnn ? by_onednn(input, packed, bias) : few_rows(input, packed, bias);
}

}  // namespace habana_mp
