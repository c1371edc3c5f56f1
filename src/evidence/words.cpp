#include "evidence/words.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Load.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "base/every_vector.h"
#include "cast/numbers.h"
#include "cast/parallel.h"
#include "cast/storage_check.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

// Odd numbers with bits all over (splitmix64).
constexpr std::uint64_t kPlace = 0x9E3779B97F4A7C15U;
constexpr std::uint64_t kFirst = 0xBF58476D1CE4E5B9U;
constexpr std::uint64_t kSecond = 0x94D049BB133111EBU;
constexpr std::uint64_t kLowHalf = 0xFFFFFFFFU;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

constexpr std::int64_t kBlock = 2048;  // words, which stay in the nearest cache: an even number

// All of mixed() but the last product, which a sum of them has once. `salt`: kPlace times the
// place.
std::uint64_t half_mixed(std::uint64_t word, std::uint64_t salt) {
  const std::uint64_t x = (word ^ salt) * kFirst;
  return x ^ (x >> 32);
}

// Words of 32 bits are taken two at a time.
HABANA_MP_EVERY_VECTOR std::uint64_t hash_of_pairs(const void* words, std::int64_t pairs,
                                                   std::uint64_t place) {
  const auto* bytes = static_cast<const char*>(words);
  std::uint64_t sum = 0, salt = place * kPlace;
  for (std::int64_t i = 0; i < pairs; ++i, salt += kPlace) {
    std::uint64_t pair = 0;
    std::memcpy(&pair, bytes + i * 8, 8);
    sum += half_mixed(pair, salt);
  }
  return sum;
}

// The last one of an odd number of 32 bits is taken alone.
template <typename Word>
std::uint64_t hash_of_block(const Word* words, std::int64_t count, std::int64_t begin) {
  constexpr std::int64_t kPer = 8 / sizeof(Word);
  const std::int64_t pairs = count / kPer;
  const auto place = static_cast<std::uint64_t>(begin / kPer);
  std::uint64_t sum = hash_of_pairs(words, pairs, place);
  if (count % kPer != 0) {
    std::uint32_t last = 0;
    std::memcpy(&last, words + pairs * kPer, 4);
    sum += half_mixed(last, (place + static_cast<std::uint64_t>(pairs)) * kPlace);
  }
  return sum;
}

// Of whole groups of lanes. Zero where a number is not finite: by its bits, as a comparison of
// floats would keep the compiler from using vectors.
HABANA_MP_EVERY_VECTOR double squares_of_groups(const float* words, std::int64_t groups) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  float sums[kLanes] = {};
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto bits = std::bit_cast<std::uint32_t>(words[group * kLanes + lane]);
      const std::uint32_t finite = (bits & kExponent) != kExponent ? 0xFFFFFFFFU : 0U;
      const auto number = std::bit_cast<float>(bits & finite);
      sums[lane] += number * number;
    }
  }
  double all = 0;
  for (const float sum : sums) all += static_cast<double>(sum);
  return all;
}

template <typename Word>
double squares_one_by_one(const Word* words, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<double>(words[i]);
    sum += std::isfinite(number) ? number * number : 0.0;
  }
  return sum;
}

template <typename Word>
double squares_of_block(const Word* words, std::int64_t count) {
  return squares_one_by_one(words, count);
}

double squares_of_block(const float* words, std::int64_t count) {
  const std::int64_t groups = count / kLanes;
  const double sum = squares_of_groups(words, groups) +
                     squares_one_by_one(words + groups * kLanes, count % kLanes);
  return std::isfinite(sum) ? sum : squares_one_by_one(words, count);
}

// Where the numbers lie: the dimensions, joined where they lie one behind the other.
struct Layout {
  c10::SmallVector<std::int64_t, 6> sizes, strides;
  bool contiguous = true;

  explicit Layout(const at::Tensor& tensor) {
    for (std::int64_t i = 0; i < tensor.dim(); ++i) {
      const std::int64_t size = tensor.size(i), stride = tensor.stride(i);
      if (size == 1) continue;
      if (!sizes.empty() && strides.back() == size * stride) {
        sizes.back() *= size;
        strides.back() = stride;
      } else {
        sizes.push_back(size);
        strides.push_back(stride);
      }
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      strides.push_back(1);
    }
    contiguous = sizes.size() == 1 && strides.front() == 1;
  }

  // The dimension along which the numbers of a transposed tensor lie one behind the other; none if
  // that is the last one, or if pairs of the last one have no partner.
  std::optional<std::size_t> turned() const {
    constexpr std::int64_t kLeast = 16;
    if (sizes.back() % 2 != 0 || strides.back() == 1) return std::nullopt;
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      if (strides[i] == 1 && sizes[i] >= kLeast) return i;
    }
    return std::nullopt;
  }
};

// Some numbers from `begin` on, as words.
template <typename Word, typename Number>
void gather(const Layout& layout, const Number* numbers, std::int64_t begin, std::int64_t count,
            Word* words) {
  c10::SmallVector<std::int64_t, 6> places(layout.sizes.size());
  std::int64_t offset = 0;
  for (std::size_t i = places.size(); i-- > 0;) {
    places[i] = begin % layout.sizes[i];
    begin /= layout.sizes[i];
    offset += places[i] * layout.strides[i];
  }
  const std::int64_t row = layout.sizes.back(), stride = layout.strides.back();
  while (count > 0) {
    const std::int64_t some = std::min(count, row - places.back());
    const Number* from = numbers + offset;
    if (stride == 1) {
      for (std::int64_t i = 0; i < some; ++i) words[i] = static_cast<Word>(c10::load(from + i));
    } else {
      for (std::int64_t i = 0; i < some; ++i)
        words[i] = static_cast<Word>(c10::load(from + i * stride));
    }
    words += some;
    count -= some;
    places.back() += some;
    offset += some * stride;
    for (std::size_t i = places.size() - 1; i > 0 && places[i] == layout.sizes[i]; --i) {
      offset += layout.strides[i - 1] - layout.sizes[i] * layout.strides[i];
      places[i] = 0;
      ++places[i - 1];
    }
  }
}

// Of pairs whose halves lie in two lines of memory.
template <typename Number>
HABANA_MP_EVERY_VECTOR std::uint64_t hash_of_lines(const Number* first, const Number* second,
                                                   std::int64_t pairs, std::uint64_t salt,
                                                   std::uint64_t step) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < pairs; ++i, salt += step) {
    const std::uint64_t pair = bits_of(first[i]) | std::uint64_t{bits_of(second[i])} << 32;
    sum += half_mixed(pair, salt);
  }
  return sum;
}

// Of a transposed tensor, in the order of its memory.
template <typename Number>
std::uint64_t hash_turned(const Layout& layout, std::size_t turned, const Number* numbers,
                          std::int64_t count) {
  const std::size_t dims = layout.sizes.size();
  std::int64_t apart = 1;  // pairs from one number of a line to the next one
  for (std::size_t i = turned + 1; i < dims; ++i) apart *= layout.sizes[i];
  apart /= 2;
  const std::int64_t length = layout.sizes[turned];
  std::atomic<std::uint64_t> all{0};
  in_parallel(0, count / 2 / length, std::max<std::int64_t>(1, kGrain / 2 / length),
              [&](std::int64_t begin, std::int64_t end) {
                std::uint64_t sum = 0;
                for (std::int64_t line = begin; line < end; ++line) {
                  std::int64_t rest = line, offset = 0, place = 0, pairs = 1;
                  for (std::size_t i = dims; i-- > 0;) {
                    const bool last = i + 1 == dims;
                    const std::int64_t size = last ? layout.sizes[i] / 2 : layout.sizes[i];
                    if (i != turned) {
                      place += rest % size * pairs;
                      offset += rest % size * layout.strides[i] * (last ? 2 : 1);
                      rest /= size;
                    }
                    pairs *= size;
                  }
                  const Number* first = numbers + offset;
                  sum += hash_of_lines(first, first + layout.strides.back(), length,
                                       static_cast<std::uint64_t>(place) * kPlace,
                                       static_cast<std::uint64_t>(apart) * kPlace);
                }
                all.fetch_add(sum, std::memory_order_relaxed);
              });
  return all;
}

template <typename Word>
WordSums sums_of_block(const Word* words, std::int64_t begin, std::int64_t count,
                       const Wanted& wanted) {
  const WordSums sums{.hash = wanted.hash ? hash_of_block(words, count, begin) : 0,
                      .squares = wanted.squares ? squares_of_block(words, count) : kUnknown};
  if (wanted.sample != nullptr) {
    const std::int64_t step = wanted.step;
    for (std::int64_t i = (begin + step - 1) / step; i * step < begin + count; ++i)
      wanted.sample[i] = static_cast<float>(words[i * step - begin]);
  }
  return sums;
}

template <typename Word, typename Number>
WordSums sums_on_cpu(const at::Tensor& tensor, const Wanted& wanted) {
  const Layout layout(tensor);
  const auto* numbers = static_cast<const Number*>(tensor.const_data_ptr());
  if constexpr (sizeof(Word) == 4) {
    const bool hash_alone = wanted.hash && !wanted.squares && wanted.sample == nullptr;
    if (const auto turned = layout.turned(); hash_alone && turned && tensor.numel() > 0)
      return {.hash = hash_turned(layout, *turned, numbers, tensor.numel()) * kSecond,
              .squares = kUnknown};
  }
  WordSums all =
      added_in_parallel<WordSums>(tensor.numel(), [&](std::int64_t begin, std::int64_t end) {
        WordSums part;
        std::array<Word, kBlock> block;  // NOLINT: filled before it is read
        for (std::int64_t i = begin; i < end; i += kBlock) {
          const std::int64_t count = std::min(kBlock, end - i);
          const Word* words = block.data();
          if constexpr (std::is_same_v<Word, Number>) {
            if (layout.contiguous) words = numbers + i;
          }
          if (words == block.data()) gather(layout, numbers, i, count, block.data());
          part.add(sums_of_block(words, i, count, wanted));
        }
        return part;
      });
  all.hash *= kSecond;
  return all;
}

// In a row, in float32, float64 or int64: what is computed in less than these is exact in them.
at::Tensor in_words(at::Tensor plain) {
  plain = plain.detach();
  if (plain.is_complex()) plain = at::view_as_real(plain);
  if (!plain.is_floating_point()) {
    plain = plain.to(at::kLong);
  } else if (plain.scalar_type() != at::kDouble) {
    plain = plain.to(at::kFloat);
  }
  return plain.contiguous().view({-1});
}

// As on the CPU.
std::uint64_t hash_by_aten(const at::Tensor& words) {
  const auto signed_of = [](std::uint64_t x) { return static_cast<std::int64_t>(x); };
  // As pairs, memory begins at a whole one.
  const at::Tensor own = words.storage_offset() % 2 == 0 ? words : words.clone();
  const std::int64_t paired = words.itemsize() == 4 ? words.numel() / 2 * 2 : words.numel();
  at::Tensor x = own.slice(0, 0, paired).view(at::kLong);
  if (paired < words.numel())
    x = at::cat(
        {x, own.slice(0, paired).view(at::kInt).to(at::kLong).bitwise_and(signed_of(kLowHalf))});
  const at::Tensor places = at::arange(x.numel(), x.options()).mul(signed_of(kPlace));
  x = x.bitwise_xor(places).mul(signed_of(kFirst));
  x = x.bitwise_xor(x.bitwise_right_shift(32).bitwise_and(signed_of(kLowHalf)));
  return static_cast<std::uint64_t>(x.mul(signed_of(kSecond)).sum().item<std::int64_t>());
}

double squares_by_aten(const at::Tensor& words) {
  if (words.is_floating_point()) {
    const double squares = words.dot(words).item<double>();
    if (std::isfinite(squares)) return squares;
  }
  return words.to(at::kDouble).nan_to_num(0, 0, 0).square().sum().item<double>();
}

WordSums sums_by_aten(const at::Tensor& words, const Wanted& wanted) {
  if (wanted.sample != nullptr && words.numel() > 0) {
    const at::Tensor sample =
        words.slice(0, 0, words.numel(), wanted.step).to(at::kCPU, at::kFloat).contiguous();
    std::memcpy(wanted.sample, sample.const_data_ptr(), sample.nbytes());
  }
  return {.hash = wanted.hash ? hash_by_aten(words) : 0,
          .squares = wanted.squares ? squares_by_aten(words) : kUnknown};
}

}  // namespace

bool lies_in_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg() && is_ordinary(tensor) && holds_numbers(tensor);
}

std::int64_t words_in(const at::Tensor& tensor) {
  return tensor.is_complex() ? 2 * tensor.numel() : tensor.numel();
}

std::uint64_t mixed(std::uint64_t word, std::uint64_t place) {
  return half_mixed(word, place * kPlace) * kSecond;
}

WordSums sums_of(const at::Tensor& plain, const Wanted& wanted) {
  if (plain.is_cpu()) {
    switch (plain.scalar_type()) {
      case at::kFloat:
        return sums_on_cpu<float, float>(plain, wanted);
      case at::kBFloat16:
        return sums_on_cpu<float, at::BFloat16>(plain, wanted);
      case at::kHalf:
        return sums_on_cpu<float, at::Half>(plain, wanted);
      case at::kDouble:
        return sums_on_cpu<double, double>(plain, wanted);
      case at::kLong:
        return sums_on_cpu<std::int64_t, std::int64_t>(plain, wanted);
      case at::kInt:
        return sums_on_cpu<std::int64_t, std::int32_t>(plain, wanted);
      case at::kBool:
        return sums_on_cpu<std::int64_t, bool>(plain, wanted);
      default:
        break;
    }
  }
  const OutOfSight out_of_sight;
  const at::Tensor words = in_words(plain);
  return words.is_cpu() ? sums_of(words, wanted) : sums_by_aten(words, wanted);
}

}  // namespace habana_mp::evidence
