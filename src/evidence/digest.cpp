#include "evidence/digest.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cast/numbers.h"
#include "cast/storage_check.h"
#include "evidence/numbers_by_aten.h"
#include "evidence/rerun.h"
#include "evidence/words.h"

namespace habana_mp::evidence {
namespace {

// The tensor as one whose memory can be read, undefined where there is none.
at::Tensor readable(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta() || tensor.is_quantized()) return {};
  at::Tensor plain = tensor.detach();
  if (plain.layout() == at::kSparse) {
    const at::Tensor whole = plain.coalesce();
    at::Tensor values = whole._values().resolve_conj().resolve_neg();
    if (values.is_complex()) values = at::view_as_real(values);
    return at::cat(
        {whole._indices().reshape({-1}).to(at::kDouble), values.reshape({-1}).to(at::kDouble)});
  }
  if (plain.layout() != at::kStrided) return {};
  if (plain.is_conj() || plain.is_neg()) plain = plain.resolve_conj().resolve_neg();
  return is_ordinary(plain) && holds_numbers(plain) ? plain : at::Tensor();
}

std::uint64_t with_sizes(std::uint64_t hash, std::int64_t words, at::IntArrayRef sizes) {
  auto place = static_cast<std::uint64_t>(words);
  for (const std::int64_t size : sizes) hash += mixed(static_cast<std::uint64_t>(size), ++place);
  return std::max<std::uint64_t>(hash, 1);
}

// Calls `look` with the tensor or with what stands for it, if that can be read.
template <typename Look>
void with_readable(const at::Tensor& tensor, const Look& look) {
  if (!tensor.defined()) return;
  if (lies_in_memory(tensor)) return look(tensor);
  const OutOfSight out_of_sight;
  const at::Tensor plain = readable(tensor);
  if (plain.defined()) look(plain);
}

// Of the i-th number, from the first one of the tensor.
std::int64_t offset_of(const at::Tensor& tensor, std::int64_t i) {
  std::int64_t offset = 0;
  for (std::int64_t dim = tensor.dim(); dim-- > 0;) {
    offset += i % tensor.size(dim) * tensor.stride(dim);
    i /= tensor.size(dim);
  }
  return offset;
}

}  // namespace

std::uint64_t hash_of(const at::Tensor& tensor, Known* known) {
  std::uint64_t hash = 0;
  with_readable(tensor, [&](const at::Tensor& plain) {
    const WordSums sums = known != nullptr && *known ? **known : sums_of(plain, {});
    hash = with_sizes(sums.hash, words_in(plain), tensor.sizes());
    if (known != nullptr) *known = sums;
  });
  return hash;
}

std::uint64_t looks_of(const at::Tensor& tensor) {
  constexpr std::int64_t kLookedAt = 32;
  if (!tensor.defined() || tensor.is_inference() || !lies_in_memory(tensor)) return 0;
  std::uint64_t hash = 0, place = 0;
  const auto add = [&](std::uint64_t word) { hash += mixed(word, ++place); };
  add(static_cast<std::uint64_t>(tensor._version()));
  add(static_cast<std::uint64_t>(tensor.storage_offset()));
  add(static_cast<std::uint64_t>(tensor.scalar_type()));
  const bool contiguous = tensor.is_contiguous();
  if (contiguous) add(static_cast<std::uint64_t>(tensor.numel()));
  for (std::int64_t dim = 0; !contiguous && dim < tensor.dim(); ++dim) {
    add(static_cast<std::uint64_t>(tensor.size(dim)));
    add(static_cast<std::uint64_t>(tensor.stride(dim)));
  }
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const auto itemsize = static_cast<std::int64_t>(tensor.itemsize());
  const std::int64_t step = std::max<std::int64_t>(1, tensor.numel() / kLookedAt);
  for (std::int64_t i = 0; i < tensor.numel(); i += step) {
    const char* number = bytes + (contiguous ? i : offset_of(tensor, i)) * itemsize;
    std::uint64_t word = 0;
    std::memcpy(&word, number, static_cast<std::size_t>(std::min<std::int64_t>(itemsize, 8)));
    add(word);
    if (itemsize > 8) {  // complex128
      std::memcpy(&word, number + 8, 8);
      add(word);
    }
  }
  return std::max<std::uint64_t>(hash, 1);
}

Digest digest_of(const at::Tensor& tensor, std::int64_t most_sampled, Known* known) {
  Digest digest;
  if (!tensor.defined()) return digest;
  digest.dtype = tensor.scalar_type();
  with_readable(tensor, [&](const at::Tensor& plain) {
    digest.sizes = tensor.sizes().vec();
    const std::int64_t words = words_in(plain);
    Wanted wanted;
    if (most_sampled > 0) {
      const auto apart =
          static_cast<std::uint64_t>((std::max<std::int64_t>(1, words) - 1) / most_sampled + 1);
      digest.step = static_cast<std::int64_t>(std::bit_ceil(apart));
      digest.sample.resize(static_cast<std::size_t>((words + digest.step - 1) / digest.step));
      wanted.step = digest.step;
      wanted.sample = digest.sample.data();
    }
    const bool summed = known != nullptr && *known && !std::isnan((*known)->squares);
    wanted.hash = wanted.squares = !summed;
    WordSums sums = sums_of(plain, wanted);
    if (summed) sums = **known;
    digest.hash = with_sizes(sums.hash, words, tensor.sizes());
    digest.norm = std::sqrt(sums.squares);
    if (known != nullptr) *known = sums;
  });
  return digest;
}

bool same_bits(const std::vector<Digest>& a, const std::vector<Digest>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.hash == y.hash && x.hash != 0; });
}

std::int64_t numel_of(const Digest& digest) {
  std::int64_t numbers = at::isComplexType(digest.dtype) ? 2 : 1;
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
