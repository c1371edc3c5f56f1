#include "evidence/numbers.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/every_vector.h"
#include "cast/parallel.h"
#include "evidence/numbers_by_aten.h"
#include "evidence/rerun.h"
#include "evidence/words.h"

namespace habana_mp::evidence {
namespace {

using report::Error;
using report::Range;

// The loops work on the bits of numbers: comparisons of floats, which may trap, would keep the
// compiler from using vectors.
constexpr std::uint32_t kExponent = 0x7F800000U;
constexpr std::uint32_t kMantissa = 0x007FFFFFU;
constexpr std::uint32_t kSize = 0x7FFFFFFFU;  // all but the sign: sizes are ordered as their bits

float number_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

constexpr std::uint32_t kMask = std::bit_cast<std::uint32_t>(kLargestNumber);

// All bits where the number is finite, else none.
std::uint32_t if_finite(std::uint32_t bits) {
  return (bits & kExponent) != kExponent ? 0xFFFFFFFFU : 0U;
}

// Rounded to bfloat16, to nearest, ties to even.
std::uint32_t to_bfloat16(std::uint32_t bits) {
  return (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
}

template <typename Number>
struct Sums {
  Number squares[kLanes] = {}, reference_squares[kLanes] = {};
  std::uint32_t largest[kLanes] = {}, reference_largest[kLanes] = {}, lost[kLanes] = {};
};

template <typename Number, typename Ran>
HABANA_MP_EVERY_VECTOR Sums<Number> add_errors(const Ran* ran, const float* reference,
                                               std::uint16_t* difference, int64_t groups) {
  Sums<Number> sums;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t i = group * kLanes + lane;
      const std::uint32_t wanted = bits_of(reference[i]);
      const std::uint32_t got = bits_of(ran[i]);
      const std::uint32_t counts = (wanted & kSize) < kMask ? 0xFFFFFFFFU : 0U;
      std::uint32_t off = bits_of(number_of(got) - number_of(wanted));
      off &= if_finite(off) & counts;
      const std::uint32_t full = wanted & counts;
      const Number d = number_of(off), r = number_of(full);
      sums.squares[lane] += d * d;
      sums.reference_squares[lane] += r * r;
      sums.largest[lane] = std::max(sums.largest[lane], off & kSize);
      sums.reference_largest[lane] = std::max(sums.reference_largest[lane], full & kSize);
      sums.lost[lane] += ~if_finite(got) & if_finite(wanted) & 1U;
      difference[i] = static_cast<std::uint16_t>(to_bfloat16(off));
    }
  }
  return sums;
}

template <typename Number>
Error error_of(const Sums<Number>& sums) {
  Error error;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    error.add({.squares = sums.squares[lane],
               .reference_squares = sums.reference_squares[lane],
               .largest = number_of(sums.largest[lane]),
               .reference_largest = number_of(sums.reference_largest[lane]),
               .lost = sums.lost[lane]});
  }
  return error;
}

constexpr int64_t kGroups = 64;  // of a block

// Whether float32 holds the sum of a block of squares, of which this is the largest root.
bool squares_fit(double largest) { return largest == 0 || (largest > 0x1p-40 && largest < 0x1p58); }

// A block of at most kLanes * kGroups numbers, a whole number of groups.
template <typename Ran>
Error error_in_block(const Ran* ran, const float* reference, std::uint16_t* difference,
                     int64_t groups) {
  const Error error = error_of(add_errors<float>(ran, reference, difference, groups));
  if (squares_fit(error.largest) && squares_fit(error.reference_largest)) return error;
  return error_of(add_errors<double>(ran, reference, difference, groups));
}

template <typename Ran>
Error error_in(const Ran* ran, const float* reference, std::uint16_t* difference, int64_t begin,
               int64_t end) {
  std::uint16_t nowhere[kLanes * kGroups];
  Error error;
  const int64_t whole = begin + (end - begin) / kLanes * kLanes;
  for (int64_t block = begin; block < whole; block += kLanes * kGroups) {
    const int64_t count = std::min(whole - block, kLanes * kGroups);
    std::uint16_t* off = difference == nullptr ? nowhere : difference + block;
    error.add(error_in_block(ran + block, reference + block, off, count / kLanes));
  }
  if (whole == end) return error;
  // Zeros behind the last numbers, which add nothing.
  Ran last[kLanes] = {};
  float last_reference[kLanes] = {};
  std::copy(ran + whole, ran + end, last);
  std::copy(reference + whole, reference + end, last_reference);
  error.add(error_in_block(last, last_reference, nowhere, 1));
  if (difference != nullptr) std::copy_n(nowhere, end - whole, difference + whole);
  return error;
}

HABANA_MP_EVERY_VECTOR std::uint32_t differs(const at::BFloat16* low, const float* full,
                                             int64_t count) {
  std::uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = bits_of(full[i]), got = low[i].x;
    const std::uint32_t both_nan = (bits & kSize) > kExponent && (got & 0x7FFFU) > 0x7F80U;
    found |= both_nan != 0 ? 0U : to_bfloat16(bits) ^ got;
  }
  return found;
}

struct Differs {
  bool any = false;
  void add(const Differs& other) { any = any || other.any; }
};

struct Bounds {
  std::uint32_t largest[kLanes] = {}, smallest[kLanes], over[kLanes] = {}, under[kLanes] = {};
};

HABANA_MP_EVERY_VECTOR void add_ranges(Bounds& bounds, const float* numbers, int64_t groups,
                                       int64_t lanes) {
  const std::uint32_t largest_f16 = std::bit_cast<std::uint32_t>(kLargestF16);
  const std::uint32_t under_f16 = std::bit_cast<std::uint32_t>(kUnderF16);
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const std::uint32_t bits = bits_of(numbers[group * kLanes + lane]);
      const std::uint32_t size = bits & kSize & if_finite(bits);
      bounds.largest[lane] = std::max(bounds.largest[lane], size);
      // Zero, and what is not finite, is none of the smallest: one less than zero is the largest.
      bounds.smallest[lane] = std::min(bounds.smallest[lane], size - 1U);
      bounds.over[lane] += size > largest_f16 ? 1U : 0U;
      bounds.under[lane] += size - 1U < under_f16 ? 1U : 0U;
    }
  }
}

Range range_in(const float* numbers, int64_t begin, int64_t end) {
  Range range{.numbers = static_cast<std::uint64_t>(end - begin)};
  Bounds bounds;
  std::ranges::fill(bounds.smallest, 0xFFFFFFFFU);
  const int64_t whole = (end - begin) / kLanes;
  add_ranges(bounds, numbers + begin, whole, kLanes);
  add_ranges(bounds, numbers + begin + whole * kLanes, 1, (end - begin) % kLanes);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    range.largest = std::max(range.largest, static_cast<double>(number_of(bounds.largest[lane])));
    if (bounds.smallest[lane] != 0xFFFFFFFFU) {
      const float smallest = number_of(bounds.smallest[lane] + 1U);
      range.smallest = std::min(range.smallest, static_cast<double>(smallest));
    }
    range.over_float16 += bounds.over[lane];
    range.under_float16 += bounds.under[lane];
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

HABANA_MP_EVERY_VECTOR Count below(const float* numbers, int64_t begin, int64_t end, float first,
                                   float second) {
  Count count;
  const std::uint32_t a = bits_of(first), b = bits_of(second);
  for (int64_t block = begin; block < end; block += kGrain) {
    std::uint32_t below_a = 0, below_b = 0;
    for (int64_t i = block; i < std::min(end, block + kGrain); ++i) {
      const std::uint32_t size = (bits_of(numbers[i]) & kSize) - 1U;  // of zero: the largest
      below_a += size < a ? 1U : 0U;
      below_b += size < b ? 1U : 0U;
    }
    count.add({below_a, below_b});
  }
  return count;
}

HABANA_MP_EVERY_VECTOR report::Absorbed absorbed_in(const float* to, const float* added,
                                                    int64_t begin, int64_t end) {
  // The bits of a power of two, some powers below it; zero where there is none that small.
  const auto below = [](std::uint32_t power, std::uint32_t steps) {
    return power > steps << 23U ? power - (steps << 23U) : 0U;
  };
  std::uint32_t sums = 0, bfloat16 = 0, float16 = 0, e4m3 = 0, e5m2 = 0;
  for (int64_t i = begin; i < end; ++i) {
    const std::uint32_t x = bits_of(to[i]), y = bits_of(added[i]);
    const std::uint32_t size = y & kSize;
    const std::uint32_t counts = size != 0 ? if_finite(x) & if_finite(y) & 1U : 0U;
    const std::uint32_t power = x & kExponent;
    // Below a power of two the steps are half as large.
    const std::uint32_t down = (x & kMantissa) == 0 && ((x ^ y) & ~kSize) != 0 ? 1U : 0U;
    sums += counts;
    bfloat16 += size < below(power, kHalfUlpBFloat16 + down) ? counts : 0U;
    float16 += size < below(power, kHalfUlpFloat16 + down) ? counts : 0U;
    e4m3 += size < below(power, kHalfUlpE4M3 + down) ? counts : 0U;
    e5m2 += size < below(power, kHalfUlpE5M2 + down) ? counts : 0U;
  }
  return {.sums = sums, .bfloat16 = bfloat16, .float16 = float16, .e4m3 = e4m3, .e5m2 = e5m2};
}

struct Sum {
  double sum = 0;
  void add(const Sum& other) { sum += other.sum; }
};

template <typename A>
HABANA_MP_EVERY_VECTOR void add_products(float* sums, const A* a, const at::BFloat16* b,
                                         int64_t groups, int64_t lanes) {
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t i = group * kLanes + lane;
      const std::uint32_t bits = bits_of(a[i]);
      sums[lane] += number_of(bits & if_finite(bits)) * number_of(bits_of(b[i]));
    }
  }
}

template <typename A>
Sum product_in(const A* a, const at::BFloat16* b, int64_t begin, int64_t end) {
  Sum all;
  for (int64_t block = begin; block < end; block += kLanes * 64) {
    const int64_t count = std::min(end - block, kLanes * 64);
    float sums[kLanes] = {};
    const int64_t whole = count / kLanes;
    add_products(sums, a + block, b + block, whole, kLanes);
    add_products(sums, a + block + whole * kLanes, b + block + whole * kLanes, 1, count % kLanes);
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

}  // namespace

report::Absorbed absorbed_of(const at::Tensor& to, const at::Tensor& added) {
  if (to.numel() == 0) return {};
  if (!is_plain(to) || !is_plain(added)) return absorbed_by_aten(to, added);
  const at::Tensor x = to.contiguous(), y = added.contiguous();
  const auto* first = x.const_data_ptr<float>();
  const auto* second = y.const_data_ptr<float>();
  return added_in_parallel<report::Absorbed>(x.numel(), [&](int64_t begin, int64_t end) {
    return absorbed_in(first, second, begin, end);
  });
}

Error error_of(const at::Tensor& ran, const at::Tensor& reference, at::Tensor* difference) {
  if (reference.numel() == 0) return {};
  if (!is_plain(ran) || !is_plain(reference)) return error_by_aten(ran, reference, difference);
  const bool alike = lie_alike(ran, reference);
  const at::Tensor got = alike ? ran : ran.contiguous();
  const at::Tensor wanted = alike ? reference : reference.contiguous();
  std::uint16_t* off = nullptr;
  if (difference != nullptr) {
    *difference = at::empty_like(wanted, wanted.options().dtype(at::kBFloat16));
    off = reinterpret_cast<std::uint16_t*>(difference->mutable_data_ptr<at::BFloat16>());
  }
  const auto* reference_numbers = wanted.const_data_ptr<float>();
  return with_numbers(got, [&](const auto* numbers) {
    return added_in_parallel<Error>(wanted.numel(), [&](int64_t begin, int64_t end) {
      return error_in(numbers, reference_numbers, off, begin, end);
    });
  });
}

bool is_rounded(const at::Tensor& low, const at::Tensor& full) {
  const bool ours =
      low.scalar_type() == at::kBFloat16 && is_plain(low) && is_plain(full) && lie_alike(low, full);
  if (!ours) {
    const at::Tensor rounded = in_dtype(full, low.scalar_type());
    return low.eq(rounded).logical_or(low.isnan().logical_and(rounded.isnan())).all().item<bool>();
  }
  const auto* first = low.const_data_ptr<at::BFloat16>();
  const auto* second = full.const_data_ptr<float>();
  const auto found = added_in_parallel<Differs>(full.numel(), [&](int64_t begin, int64_t end) {
    Differs some;
    constexpr int64_t kBlock = kLanes * kGroups;  // mostly the first one tells
    for (int64_t block = begin; block < end && !some.any; block += kBlock)
      some.any = differs(first + block, second + block, std::min(end - block, kBlock)) != 0;
    return some;
  });
  return !found.any;
}

double sum_of_squares(const at::Tensor& numbers) {
  const OutOfSight out_of_sight;
  const at::Tensor full = numbers.detach().to(at::kFloat);
  return error_of(full, full, nullptr).reference_squares;
}

Range range_of(const at::Tensor& numbers) {
  if (numbers.numel() == 0) return {};
  if (!is_plain(numbers)) return range_by_aten(numbers);
  const at::Tensor plain = numbers.is_non_overlapping_and_dense() ? numbers : numbers.contiguous();
  const auto* data = plain.const_data_ptr<float>();
  auto range = added_in_parallel<Range>(
      plain.numel(), [&](int64_t begin, int64_t end) { return range_in(data, begin, end); });
  const auto e4m3 = static_cast<float>(range.largest * kUnderE4M3);
  const auto e5m2 = static_cast<float>(range.largest * kUnderE5M2);
  if (range.smallest <= static_cast<double>(e4m3)) {
    const auto count = added_in_parallel<Count>(plain.numel(), [&](int64_t begin, int64_t end) {
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
    return added_in_parallel<Sum>(left.numel(),
                                  [&](int64_t begin, int64_t end) {
                                    return product_in(numbers, differences, begin, end);
                                  })
        .sum;
  });
}

}  // namespace habana_mp::evidence
