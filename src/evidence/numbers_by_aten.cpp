#include "evidence/numbers_by_aten.h"

#include <ATen/ops/frexp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace habana_mp::evidence {
namespace {

double number(const at::Tensor& numbers, int64_t i) { return numbers.const_data_ptr<double>()[i]; }

}  // namespace

report::Error error_by_aten(const at::Tensor& ran, const at::Tensor& reference,
                            at::Tensor* difference) {
  const at::Tensor got = ran.to(at::kFloat);
  const at::Tensor counts = reference.abs().lt(kLargestNumber);
  const at::Tensor finite = at::isfinite(got).logical_and(counts);
  const at::Tensor zero = at::zeros_like(reference);
  const at::Tensor off = at::where(finite, got.sub(reference), zero);
  const at::Tensor wanted = at::where(counts, reference, zero);
  const at::Tensor lost = at::isfinite(reference).logical_and(at::isfinite(got).logical_not());
  if (difference != nullptr) *difference = off.to(at::kBFloat16);
  // One copy from the device.
  const at::Tensor all =
      at::stack({off.to(at::kDouble).square().sum(), wanted.to(at::kDouble).square().sum(),
                 off.abs().amax().to(at::kDouble), wanted.abs().amax().to(at::kDouble),
                 lost.sum().to(at::kDouble)})
          .cpu();
  return {.squares = number(all, 0),
          .reference_squares = number(all, 1),
          .largest = number(all, 2),
          .reference_largest = number(all, 3),
          .lost = static_cast<std::uint64_t>(number(all, 4))};
}

report::Range range_by_aten(const at::Tensor& numbers) {
  const at::Tensor size = at::where(at::isfinite(numbers), numbers, 0.0).abs();
  const at::Tensor some = size.gt(0);
  const at::Tensor largest = size.amax();
  const auto count = [](const at::Tensor& which) { return which.sum().to(at::kDouble); };
  const auto infinity = std::numeric_limits<double>::infinity();
  const at::Tensor all =
      at::stack({largest.to(at::kDouble), at::where(some, size, infinity).amin().to(at::kDouble),
                 count(size.gt(kLargestF16)), count(some.logical_and(size.le(kUnderF16))),
                 count(some.logical_and(size.le(largest.mul(kUnderE4M3)))),
                 count(some.logical_and(size.le(largest.mul(kUnderE5M2))))})
          .cpu();
  const auto counted = [&](int64_t i) { return static_cast<std::uint64_t>(number(all, i)); };
  return {.numbers = static_cast<std::uint64_t>(numbers.numel()),
          .largest = number(all, 0),
          .smallest = number(all, 1),
          .over_float16 = counted(2),
          .under_float16 = counted(3),
          .under_e4m3 = counted(4),
          .under_e5m2 = counted(5)};
}

report::Absorbed absorbed_by_aten(const at::Tensor& to, const at::Tensor& added) {
  const at::Tensor size = added.abs();
  const at::Tensor counts =
      at::isfinite(to).logical_and(at::isfinite(added)).logical_and(size.gt(0));
  // The mantissa is 0.5 or more: this is the power of two of a number, exactly. Not by ldexp, which
  // torch 2.12 has for its own devices alone.
  const at::Tensor mantissa = std::get<0>(at::frexp(to));
  const at::Tensor power = to.div(mantissa.mul(2));
  // Below a power of two the steps are half as large.
  const at::Tensor down = mantissa.abs().eq(0.5).logical_and(to.sign().mul(added.sign()).lt(0));
  const at::Tensor step = at::where(to.eq(0), 0.0, at::where(down, power.mul(0.5), power));
  const auto lost = [&](std::uint32_t steps) {
    const double part = std::ldexp(1.0, -static_cast<int>(steps));
    return counts.logical_and(size.lt(step.mul(part))).sum().to(at::kDouble);
  };
  const at::Tensor all = at::stack({counts.sum().to(at::kDouble), lost(kHalfUlpBFloat16),
                                    lost(kHalfUlpFloat16), lost(kHalfUlpE4M3), lost(kHalfUlpE5M2)})
                             .cpu();
  const auto counted = [&](int64_t i) { return static_cast<std::uint64_t>(number(all, i)); };
  return {.sums = counted(0),
          .bfloat16 = counted(1),
          .float16 = counted(2),
          .e4m3 = counted(3),
          .e5m2 = counted(4)};
}

}  // namespace habana_mp::evidence
