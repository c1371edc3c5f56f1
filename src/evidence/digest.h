// The numbers of a tensor in few bytes, so that those of two runs can be compared without keeping
// either: a hash of all of them, and a sample.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "evidence/words.h"

namespace habana_mp::evidence {

inline constexpr std::int64_t kMostSampled = 2048;

struct Digest {
  std::uint64_t hash = 0;  // of sizes and bits: the same for bfloat16 and the float32 made of it
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<std::int64_t> sizes{};
  double norm = 0;              // the root of the sum of squares of all finite numbers
  std::int64_t step = 1;        // the sample is each step-th number: a power of two, so that two
  std::vector<float> sample{};  // samples have numbers in common
};

// A complex number is two.
std::int64_t numel_of(const Digest& digest);

// Of a dense or sparse tensor of any dtype, which has memory; of another one the hash is 0, and
// there is no sample. `known`, where given, is what is known of its numbers, and is set to what is
// known then: nothing of a tensor without memory.
using Known = std::optional<WordSums>;
Digest digest_of(const at::Tensor& tensor, std::int64_t most_sampled = kMostSampled,
                 Known* known = nullptr);
std::uint64_t hash_of(const at::Tensor& tensor, Known* known = nullptr);

// A hash of what would change with the numbers of a tensor: its place, form and version, and some
// of its numbers, because not all that writes to it counts versions. Contiguous tensors of other
// sizes with the same numbers look the same. 0 of a tensor that has to be hashed each time.
std::uint64_t looks_of(const at::Tensor& tensor);

// A hash of numbers in their order (FNV-1a).
struct Fnv {
  std::uint64_t value = 14695981039346656037U;
  void add(std::uint64_t number) { value = (value ^ number) * 1099511628211U; }
};

// Whether two lists have the same numbers, bit for bit, and all of them could be read.
bool same_bits(const std::vector<Digest>& a, const std::vector<Digest>& b);

// How far pairs of numbers are apart, in parts of the size of the first ones: infinite where some
// number is finite in one of the two alone.
class Distance {
 public:
  void add(double first, double second);
  // Of a tensor whose pairs stand for so many numbers each.
  void add(const Distance& tensor, double stands_for);
  double value() const;
  // The same in parts of a number of this size.
  double beside(double size) const;
  std::int64_t pairs() const { return pairs_; }

 private:
  double squares_ = 0, whole_ = 0;
  bool infinite_ = false;
  std::int64_t pairs_ = 0;
};

// How far numbers are from others of their sizes: by the samples, each of which stands for its
// tensor. NaN where the sizes differ, or where one of them has no sample.
double distance(const std::vector<Digest>& from, const std::vector<Digest>& to);

}  // namespace habana_mp::evidence
