// The numbers of a tensor in few bytes, so that those of two runs can be compared without keeping
// either: a hash of all of them, and a sample.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace habana_mp::evidence {

inline constexpr std::int64_t kMostSampled = 2048;

struct Digest {
  std::uint64_t hash = 0;  // of sizes and bits: the same for bfloat16 and the float32 made of it
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<std::int64_t> sizes;
  std::vector<float> sample;  // spread evenly over all numbers
};

// Of a dense or sparse tensor of any dtype, which has memory; of another one the hash is 0, and
// there is no sample.
Digest digest_of(const at::Tensor& tensor, std::int64_t most_sampled = kMostSampled);
std::uint64_t hash_of(const at::Tensor& tensor);

// Whether two lists have the same numbers, bit for bit, and all of them could be read.
bool same_bits(const std::vector<Digest>& a, const std::vector<Digest>& b);

// How far numbers are from others of their sizes, in parts of the size of the first ones: by the
// samples, each of which stands for its tensor. NaN where the sizes differ, infinite where some
// number is finite in one of them alone.
double distance(const std::vector<Digest>& from, const std::vector<Digest>& to);

}  // namespace habana_mp::evidence
