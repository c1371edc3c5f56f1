#include "evidence/finite.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/isposinf.h>
#include <ATen/ops/nan_to_num.h>

#include <atomic>
#include <cmath>
#include <cstdint>

#include "cast/dtypes.h"
#include "cast/parallel.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

// Whether an exponent has all of its bits set.
template <typename Word>
bool all_finite(const Word* words, int64_t count, Word exponent) {
  std::atomic<bool> found{false};
  in_parallel(0, count, kGrain, [&](int64_t begin, int64_t end) {
    if (found.load(std::memory_order_relaxed)) return;
    Word some = 0;  // a bit that stays: the loop has no branch
    for (int64_t i = begin; i < end; ++i) {
      some = static_cast<Word>(some | ((words[i] & exponent) == exponent ? 1 : 0));
    }
    if (some != 0) found.store(true, std::memory_order_relaxed);
  });
  return !found.load();
}

bool all_finite(const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
      tensor.is_non_overlapping_and_dense()) {
    const void* data = tensor.const_data_ptr();
    const int64_t count = tensor.numel();
    switch (tensor.scalar_type()) {
      case at::kFloat:
        return all_finite(static_cast<const std::uint32_t*>(data), count, 0x7F800000U);
      case at::kBFloat16:
        return all_finite(static_cast<const std::uint16_t*>(data), count,
                          static_cast<std::uint16_t>(0x7F80));
      case at::kHalf:
        return all_finite(static_cast<const std::uint16_t*>(data), count,
                          static_cast<std::uint16_t>(0x7C00));
      default:
        break;
    }
  }
  return at::isfinite(tensor).all().item<bool>();
}

NotFinite of_number(double number) {
  return {.nan = std::isnan(number),
          .above = std::isinf(number) && number > 0,
          .below = std::isinf(number) && number < 0};
}

}  // namespace

NotFinite not_finite(const at::Tensor& given) {
  if (!is_readable(given) || !given.is_floating_point() || given.numel() == 0) return {};
  const OutOfSight out_of_sight;
  const bool plain = row_of(dtype_of(given)).bytes > 1;  // those of 8 bits have no such kernels
  const at::Tensor tensor = plain ? given : given.to(at::kFloat);
  if (all_finite(tensor)) return {};
  return {.nan = at::isnan(tensor).any().item<bool>(),
          .above = at::isposinf(tensor).any().item<bool>(),
          .below = at::isneginf(tensor).any().item<bool>()};
}

double largest_finite(const at::Tensor& tensor) {
  if (!is_readable(tensor) || !tensor.is_floating_point() || tensor.numel() == 0) return 0;
  const OutOfSight out_of_sight;
  const at::Tensor wide = tensor.detach().to(at::kDouble).reshape({-1});
  return at::nan_to_num(wide, 0.0, 0.0, 0.0).abs().amax().item<double>();
}

NotFinite not_finite(const c10::IValue& argument) {
  if (argument.isDouble()) return of_number(argument.toDouble());
  NotFinite all;
  with_tensors(argument, [&](const at::Tensor& tensor) {
    all.add(not_finite(tensor));
    return tensor;
  });
  return all;
}

}  // namespace habana_mp::evidence
