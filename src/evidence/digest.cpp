#include "evidence/digest.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "cast/dtypes.h"
#include "cast/numbers.h"
#include "cast/parallel.h"
#include "cast/storage_check.h"
#include "evidence/numbers_by_aten.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

// Odd numbers with bits all over (splitmix64).
constexpr std::uint64_t kPlace = 0x9E3779B97F4A7C15U;
constexpr std::uint64_t kFirst = 0xBF58476D1CE4E5B9U;
constexpr std::uint64_t kSecond = 0x94D049BB133111EBU;
constexpr std::uint64_t kLowHalf = 0xFFFFFFFFU;

std::uint64_t mixed(std::uint64_t word, std::uint64_t place) {
  std::uint64_t x = (word ^ (place * kPlace)) * kFirst;
  x ^= x >> 32;
  return x * kSecond;
}

template <typename Word>
std::uint64_t sum_of(const void* numbers, std::int64_t begin, std::int64_t end) {
  const auto* words = static_cast<const Word*>(numbers);
  std::uint64_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += mixed(words[i], static_cast<std::uint64_t>(i));
  return sum;
}

std::uint64_t hash_on_cpu(const at::Tensor& words) {
  const auto sum = words.itemsize() == 4 ? sum_of<std::uint32_t> : sum_of<std::uint64_t>;
  const void* numbers = words.const_data_ptr();
  std::atomic<std::uint64_t> all{0};
  in_parallel(0, words.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    all.fetch_add(sum(numbers, begin, end), std::memory_order_relaxed);
  });
  return all;
}

std::uint64_t hash_elsewhere(const at::Tensor& words) {
  const auto signed_of = [](std::uint64_t x) { return static_cast<std::int64_t>(x); };
  at::Tensor x = words.view(words.itemsize() == 4 ? at::kInt : at::kLong).to(at::kLong);
  if (words.itemsize() == 4) x = x.bitwise_and(signed_of(kLowHalf));
  const at::Tensor places = at::arange(words.numel(), x.options()).mul(signed_of(kPlace));
  x = x.bitwise_xor(places).mul(signed_of(kFirst));
  x = x.bitwise_xor(x.bitwise_right_shift(32).bitwise_and(signed_of(kLowHalf)));
  return static_cast<std::uint64_t>(x.mul(signed_of(kSecond)).sum().item<std::int64_t>());
}

// In a row, in float32, float64 or int64: what is computed in less than these is exact in them.
at::Tensor in_words(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach();
  if (plain.is_complex()) plain = at::view_as_real(plain);
  if (!plain.is_floating_point()) {
    plain = plain.to(at::kLong);
  } else if (plain.scalar_type() != at::kDouble) {
    plain = plain.to(at::kFloat);
  }
  return plain.contiguous().view({-1});
}

// The tensor as one whose memory can be read, undefined where there is none.
at::Tensor readable(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta() || tensor.is_quantized()) return {};
  at::Tensor plain = tensor.detach();
  if (plain.layout() == at::kSparse) {
    const at::Tensor whole = plain.coalesce();
    return at::cat({whole._indices().reshape({-1}).to(at::kDouble),
                    whole._values().reshape({-1}).to(at::kDouble)});
  }
  if (plain.layout() != at::kStrided) return {};
  if (plain.is_conj() || plain.is_neg()) plain = plain.resolve_conj().resolve_neg();
  return is_ordinary(plain) && holds_numbers(plain) ? plain : at::Tensor();
}

std::uint64_t hash_of_words(const at::Tensor& words, at::IntArrayRef sizes) {
  std::uint64_t hash = words.device().is_cpu() ? hash_on_cpu(words) : hash_elsewhere(words);
  std::uint64_t place = static_cast<std::uint64_t>(words.numel());
  for (const std::int64_t size : sizes) hash += mixed(static_cast<std::uint64_t>(size), ++place);
  return std::max<std::uint64_t>(hash, 1);
}

}  // namespace

std::uint64_t hash_of(const at::Tensor& tensor) {
  const OutOfSight out_of_sight;
  const at::Tensor plain = readable(tensor);
  return plain.defined() ? hash_of_words(in_words(plain), tensor.sizes()) : 0;
}

Digest digest_of(const at::Tensor& tensor, std::int64_t most_sampled) {
  Digest digest;
  if (!tensor.defined()) return digest;
  digest.dtype = tensor.scalar_type();
  const OutOfSight out_of_sight;
  const at::Tensor plain = readable(tensor);
  if (!plain.defined()) return digest;
  digest.sizes = tensor.sizes().vec();
  const at::Tensor words = in_words(plain);
  digest.hash = hash_of_words(words, tensor.sizes());
  if (most_sampled == 0) return digest;
  const std::int64_t step = (std::max<std::int64_t>(1, words.numel()) - 1) / most_sampled + 1;
  const at::Tensor sample =
      words.slice(0, 0, words.numel(), step).to(at::kCPU, at::kFloat).contiguous();
  digest.sample.resize(static_cast<std::size_t>(sample.numel()));
  if (sample.numel() > 0)
    std::memcpy(digest.sample.data(), sample.const_data_ptr(),
                digest.sample.size() * sizeof(float));
  return digest;
}

bool same_bits(const std::vector<Digest>& a, const std::vector<Digest>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.hash == y.hash && x.hash != 0; });
}

double distance(const std::vector<Digest>& from, const std::vector<Digest>& to) {
  if (from.size() != to.size()) return std::numeric_limits<double>::quiet_NaN();
  double squares = 0, whole = 0;
  for (std::size_t n = 0; n < from.size(); ++n) {
    const std::vector<float>&first = from[n].sample, &second = to[n].sample;
    if (from[n].sizes != to[n].sizes || first.size() != second.size())
      return std::numeric_limits<double>::quiet_NaN();
    double of_this = 0, whole_of_this = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const double a = first[i], b = second[i];
      if (std::isfinite(a) != std::isfinite(b) || (std::isinf(a) && std::isinf(b) && a != b))
        return std::numeric_limits<double>::infinity();
      if (!std::isfinite(a) || (std::abs(a) > kLargestNumber && std::abs(b) > kLargestNumber))
        continue;
      of_this += (b - a) * (b - a);
      whole_of_this += a * a;
    }
    double numbers = 1;
    for (const std::int64_t size : from[n].sizes) numbers *= static_cast<double>(size);
    const double stands_for = first.empty() ? 0.0 : numbers / static_cast<double>(first.size());
    squares += of_this * stands_for;
    whole += whole_of_this * stands_for;
  }
  if (whole > 0) return std::sqrt(squares / whole);
  return squares > 0 ? std::numeric_limits<double>::infinity() : 0.0;
}

}  // namespace habana_mp::evidence
