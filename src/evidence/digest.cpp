#include "evidence/digest.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <atomic>
#include <bit>
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

// Numbers of 32 bits are taken two at a time, and the last one of an odd number of them alone.
std::uint64_t hash_on_cpu(const at::Tensor& words) {
  const auto* bytes = static_cast<const char*>(words.const_data_ptr());
  const std::int64_t size = words.numel() * static_cast<std::int64_t>(words.itemsize());
  const std::int64_t whole = size / 8;
  std::atomic<std::uint64_t> all{0};
  in_parallel(0, whole, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t sum = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i * 8, 8);
      sum += mixed(word, static_cast<std::uint64_t>(i));
    }
    all.fetch_add(sum, std::memory_order_relaxed);
  });
  if (size % 8 == 0) return all;
  std::uint32_t last = 0;
  std::memcpy(&last, bytes + whole * 8, 4);
  return all + mixed(last, static_cast<std::uint64_t>(whole));
}

// The same by ATen.
std::uint64_t hash_elsewhere(const at::Tensor& words) {
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

// In a row, in float32, float64 or int64: what is computed in less than these is exact in them.
at::Tensor in_words(at::Tensor plain) {
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

double norm_of(const at::Tensor& words) {
  if (words.is_floating_point()) {
    const double squares = words.dot(words).item<double>();
    if (std::isfinite(squares)) return std::sqrt(squares);
  }
  return words.to(at::kDouble).nan_to_num(0, 0, 0).norm().item<double>();
}

}  // namespace

std::uint64_t hash_of(const at::Tensor& tensor) {
  const OutOfSight out_of_sight;
  const at::Tensor plain = readable(tensor);
  return plain.defined() ? hash_of_words(in_words(plain), tensor.sizes()) : 0;
}

std::uint64_t looks_of(const at::Tensor& tensor) {
  constexpr std::int64_t kLookedAt = 32;
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu() ||
      !is_ordinary(tensor) || tensor.is_inference() || tensor.is_conj() || tensor.is_neg() ||
      !tensor.is_contiguous() || !holds_numbers(tensor))
    return 0;
  Fnv hash;
  hash.add(static_cast<std::uint64_t>(tensor._version()));
  hash.add(static_cast<std::uint64_t>(tensor.storage_offset()));
  hash.add(static_cast<std::uint64_t>(tensor.scalar_type()));
  for (const std::int64_t size : tensor.sizes()) hash.add(static_cast<std::uint64_t>(size));
  const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  const auto itemsize = static_cast<std::int64_t>(tensor.itemsize());
  const std::int64_t step = std::max<std::int64_t>(1, tensor.numel() / kLookedAt);
  for (std::int64_t i = 0; i < tensor.numel(); i += step) {
    for (std::int64_t byte = 0; byte < itemsize; ++byte) hash.add(bytes[i * itemsize + byte]);
  }
  return std::max<std::uint64_t>(hash.value, 1);
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
  digest.norm = norm_of(words);
  if (most_sampled == 0) return digest;
  const auto apart =
      static_cast<std::uint64_t>((std::max<std::int64_t>(1, words.numel()) - 1) / most_sampled + 1);
  digest.step = static_cast<std::int64_t>(std::bit_ceil(apart));
  const at::Tensor sample =
      words.slice(0, 0, words.numel(), digest.step).to(at::kCPU, at::kFloat).contiguous();
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

std::int64_t numel_of(const Digest& digest) {
  std::int64_t numbers = 1;
  for (const std::int64_t size : digest.sizes) numbers *= size;
  return numbers;
}

void Distance::add(double first, double second) {
  ++pairs_;
  if (std::isfinite(first) != std::isfinite(second) ||
      (std::isinf(first) && std::isinf(second) && first != second))
    infinite_ = true;
  const bool large = std::abs(first) > kLargestNumber && std::abs(second) > kLargestNumber;
  if (!std::isfinite(first) || !std::isfinite(second) || large) return;
  squares_ += (second - first) * (second - first);
  whole_ += first * first;
}

void Distance::add(const Distance& tensor, double stands_for) {
  squares_ += tensor.squares_ * stands_for;
  whole_ += tensor.whole_ * stands_for;
  infinite_ = infinite_ || tensor.infinite_;
  pairs_ += tensor.pairs_;
}

double Distance::value() const {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (infinite_) return kInfinite;
  if (whole_ > 0) return std::sqrt(squares_ / whole_);
  return squares_ > 0 ? kInfinite : 0.0;
}

double Distance::beside(double size) const {
  if (infinite_ || size <= 0 || pairs_ == 0) return value();
  return std::sqrt(squares_ / static_cast<double>(pairs_)) / size;
}

double distance(const std::vector<Digest>& from, const std::vector<Digest>& to) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  if (from.size() != to.size()) return kUnknown;
  Distance all;
  for (std::size_t n = 0; n < from.size(); ++n) {
    const Digest &first = from[n], &second = to[n];
    if (first.sizes != second.sizes) return kUnknown;
    const std::int64_t step = std::max(first.step, second.step);
    const auto own = static_cast<std::size_t>(step / first.step);
    const auto other = static_cast<std::size_t>(step / second.step);
    Distance tensor;
    for (std::size_t i = 0; i * own < first.sample.size() && i * other < second.sample.size(); ++i)
      tensor.add(first.sample[i * own], second.sample[i * other]);
    if (tensor.pairs() == 0 && first.hash != second.hash) return kUnknown;
    if (tensor.pairs() > 0)
      all.add(tensor, static_cast<double>(numel_of(first)) / static_cast<double>(tensor.pairs()));
  }
  return all.value();
}

}  // namespace habana_mp::evidence
