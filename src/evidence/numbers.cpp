#include "evidence/numbers.h"

#include <ATen/Parallel.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

namespace habana_mp::evidence {
namespace {

using report::Error;
using report::Range;

constexpr int64_t kGrain = 1 << 15;
constexpr int64_t kLanes = 16;  // sums that the compiler keeps apart, in one vector register or two

// The largest number of float16, and what is halfway to its smallest: below that it rounds to zero.
// The same of the float8 dtypes, whose scale makes the largest number of a tensor their largest.
constexpr float kLargestF16 = 65504.0F;
constexpr float kUnderF16 = 0x1p-25F;
constexpr double kUnderE4M3 = 0x1p-10 / 448.0;
constexpr double kUnderE5M2 = 0x1p-17 / 57344.0;

float as_float(float value) { return value; }
float as_float(at::BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.x) << 16);
}
float as_float(at::Half value) { return static_cast<float>(value); }

bool is_finite(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7F800000U) != 0x7F800000U;
}

// Parts of a loop, each with a result of its own, added in their order.
template <typename Result, typename Part>
Result added(int64_t count, const Part& part) {
  const int64_t parts = std::max<int64_t>(1, (count + kGrain - 1) / kGrain);
  std::vector<Result> results(static_cast<std::size_t>(parts));
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      results[static_cast<std::size_t>(i)] = part(i * kGrain, std::min(count, (i + 1) * kGrain));
    }
  });
  Result all = results.front();
  for (std::size_t i = 1; i < results.size(); ++i) all.add(results[i]);
  return all;
}

struct Sums {
  std::array<float, kLanes> squares{}, reference_squares{}, largest{}, reference_largest{};
  std::array<std::uint32_t, kLanes> lost{};
};

template <typename Ran>
Error error_in(const Ran* ran, const float* reference, at::BFloat16* difference, int64_t begin,
               int64_t end) {
  Error error;
  // Sums of a few hundred numbers in float32, then in double.
  for (int64_t block = begin; block < end; block += kLanes * 64) {
    const int64_t stop = std::min(end, block + kLanes * 64);
    Sums sums;
    const auto one = [&](int64_t i, std::size_t lane) {
      const float wanted = reference[i];
      const float got = as_float(ran[i]);
      const float off = got - wanted;
      const bool counts = is_finite(off);
      const float d = counts ? off : 0.0F;
      const float r = is_finite(wanted) ? wanted : 0.0F;
      sums.squares[lane] += d * d;
      sums.reference_squares[lane] += r * r;
      sums.largest[lane] = std::max(sums.largest[lane], std::fabs(d));
      sums.reference_largest[lane] = std::max(sums.reference_largest[lane], std::fabs(r));
      sums.lost[lane] += (!is_finite(got) && is_finite(wanted)) ? 1U : 0U;
      if (difference != nullptr) difference[i] = at::BFloat16(d);
    };
    int64_t i = block;
    for (; i + kLanes <= stop; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) one(i + lane, static_cast<std::size_t>(lane));
    }
    for (; i < stop; ++i) one(i, 0);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      error.add({.squares = sums.squares[lane],
                 .reference_squares = sums.reference_squares[lane],
                 .largest = sums.largest[lane],
                 .reference_largest = sums.reference_largest[lane],
                 .lost = sums.lost[lane]});
    }
  }
  return error;
}

Range range_in(const float* numbers, int64_t begin, int64_t end) {
  Range range{.numbers = static_cast<std::uint64_t>(end - begin)};
  std::array<float, kLanes> largest{}, smallest;
  std::array<std::uint32_t, kLanes> over{}, under{};
  smallest.fill(std::numeric_limits<float>::infinity());
  const auto one = [&](int64_t i, std::size_t lane) {
    const float size = std::fabs(numbers[i]);
    const bool counts = is_finite(size);
    largest[lane] = std::max(largest[lane], counts ? size : 0.0F);
    const bool some = counts && size > 0.0F;
    smallest[lane] = std::min(smallest[lane], some ? size : smallest[lane]);
    over[lane] += counts && size > kLargestF16 ? 1U : 0U;
    under[lane] += some && size <= kUnderF16 ? 1U : 0U;
  };
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) one(i + lane, static_cast<std::size_t>(lane));
  }
  for (; i < end; ++i) one(i, 0);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    range.largest = std::max(range.largest, static_cast<double>(largest[lane]));
    range.smallest = std::min(range.smallest, static_cast<double>(smallest[lane]));
    range.over_float16 += over[lane];
    range.under_float16 += under[lane];
  }
  return range;
}

struct Count {
  std::uint64_t first = 0, second = 0;
  void add(const Count& other) {
    first += other.first;
    second += other.second;
  }
};

Count below(const float* numbers, int64_t begin, int64_t end, float first, float second) {
  std::array<std::uint32_t, kLanes> a{}, b{};
  const auto one = [&](int64_t i, std::size_t lane) {
    const float size = std::fabs(numbers[i]);
    a[lane] += size > 0.0F && size <= first ? 1U : 0U;
    b[lane] += size > 0.0F && size <= second ? 1U : 0U;
  };
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) one(i + lane, static_cast<std::size_t>(lane));
  }
  for (; i < end; ++i) one(i, 0);
  Count count;
  for (std::size_t lane = 0; lane < kLanes; ++lane) count.add({a[lane], b[lane]});
  return count;
}

struct Sum {
  double sum = 0;
  void add(const Sum& other) { sum += other.sum; }
};

template <typename A>
Sum product_in(const A* a, const at::BFloat16* b, int64_t begin, int64_t end) {
  Sum all;
  for (int64_t block = begin; block < end; block += kLanes * 64) {
    const int64_t stop = std::min(end, block + kLanes * 64);
    std::array<float, kLanes> sums{};
    int64_t i = block;
    for (; i + kLanes <= stop; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        sums[static_cast<std::size_t>(lane)] += as_float(a[i + lane]) * as_float(b[i + lane]);
      }
    }
    for (; i < stop; ++i) sums[0] += as_float(a[i]) * as_float(b[i]);
    for (const float sum : sums) all.sum += static_cast<double>(sum);
  }
  return all;
}

// Calls `use` with the numbers, whose type is one of the three.
template <typename Use>
auto with_numbers(const at::Tensor& tensor, const Use& use) {
  if (tensor.scalar_type() == at::kBFloat16) return use(tensor.const_data_ptr<at::BFloat16>());
  if (tensor.scalar_type() == at::kHalf) return use(tensor.const_data_ptr<at::Half>());
  return use(tensor.const_data_ptr<float>());
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_neg();
}

// Where both lie alike, and without holes, their order in memory does not matter.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.is_non_overlapping_and_dense() && a.strides() == b.strides();
}

double number(const at::Tensor& numbers, int64_t i) { return numbers.const_data_ptr<double>()[i]; }

Error error_by_aten(const at::Tensor& ran, const at::Tensor& reference, at::Tensor* difference) {
  const at::Tensor got = ran.to(at::kFloat);
  const at::Tensor finite = at::isfinite(got).logical_and(at::isfinite(reference));
  const at::Tensor zero = at::zeros_like(reference);
  const at::Tensor off = at::where(finite, got.sub(reference), zero);
  const at::Tensor wanted = at::where(at::isfinite(reference), reference, zero);
  const at::Tensor lost = at::isfinite(reference).logical_and(at::isfinite(got).logical_not());
  if (difference != nullptr) *difference = off.to(at::kBFloat16);
  // One copy from the device.
  const at::Tensor all =
      at::stack({off.square().sum(at::kDouble), wanted.square().sum(at::kDouble),
                 off.abs().amax().to(at::kDouble), wanted.abs().amax().to(at::kDouble),
                 lost.sum().to(at::kDouble)})
          .cpu();
  return {.squares = number(all, 0),
          .reference_squares = number(all, 1),
          .largest = number(all, 2),
          .reference_largest = number(all, 3),
          .lost = static_cast<std::uint64_t>(number(all, 4))};
}

Range range_by_aten(const at::Tensor& numbers) {
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

}  // namespace

Error error_of(const at::Tensor& ran, const at::Tensor& reference, at::Tensor* difference) {
  if (reference.numel() == 0) return {};
  if (!is_plain(ran) || !is_plain(reference)) return error_by_aten(ran, reference, difference);
  const bool alike = lie_alike(ran, reference);
  const at::Tensor got = alike ? ran : ran.contiguous();
  const at::Tensor wanted = alike ? reference : reference.contiguous();
  at::BFloat16* off = nullptr;
  if (difference != nullptr) {
    *difference = at::empty_like(wanted, wanted.options().dtype(at::kBFloat16));
    off = difference->mutable_data_ptr<at::BFloat16>();
  }
  const auto* reference_numbers = wanted.const_data_ptr<float>();
  return with_numbers(got, [&](const auto* numbers) {
    return added<Error>(wanted.numel(), [&](int64_t begin, int64_t end) {
      return error_in(numbers, reference_numbers, off, begin, end);
    });
  });
}

Error no_error(const at::Tensor& reference) {
  if (reference.numel() == 0) return {};
  return error_of(reference, reference, nullptr);
}

Range range_of(const at::Tensor& numbers) {
  if (numbers.numel() == 0) return {};
  if (!is_plain(numbers)) return range_by_aten(numbers);
  const at::Tensor plain = numbers.is_non_overlapping_and_dense() ? numbers : numbers.contiguous();
  const auto* data = plain.const_data_ptr<float>();
  auto range = added<Range>(plain.numel(),
                            [&](int64_t begin, int64_t end) { return range_in(data, begin, end); });
  const auto e4m3 = static_cast<float>(range.largest * kUnderE4M3);
  const auto e5m2 = static_cast<float>(range.largest * kUnderE5M2);
  if (range.smallest <= static_cast<double>(e4m3)) {
    const auto count = added<Count>(plain.numel(), [&](int64_t begin, int64_t end) {
      return below(data, begin, end, e4m3, e5m2);
    });
    range.under_e4m3 = count.first;
    range.under_e5m2 = count.second;
  }
  return range;
}

double product(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  if (!is_plain(a) || !is_plain(b)) {
    const at::Tensor all = at::where(at::isfinite(a), a, 0.0).to(at::kFloat).mul(b);
    return all.sum(at::kDouble).item<double>();
  }
  const bool alike = lie_alike(a, b);
  at::Tensor left = alike ? a : a.contiguous();
  if (left.scalar_type() == at::kDouble) left = left.to(at::kFloat);
  const at::Tensor right = alike ? b : b.contiguous();
  const auto* differences = right.const_data_ptr<at::BFloat16>();
  return with_numbers(left, [&](const auto* numbers) {
    return added<Sum>(left.numel(),
                      [&](int64_t begin, int64_t end) {
                        return product_in(numbers, differences, begin, end);
                      })
        .sum;
  });
}

}  // namespace habana_mp::evidence
