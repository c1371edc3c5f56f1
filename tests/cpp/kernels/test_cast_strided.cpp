// The cast of arrays of any strides, in one go and in pieces, against cast_reference.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cast_reference.h"
#include "kernels/cast_strided.h"

using namespace habana_mp;
using kernels::Stores;
using kernels::StridedCast;

namespace {

constexpr DType F16 = DType::Float16, BF16 = DType::BFloat16, F32 = DType::Float32;
using Numbers = std::vector<std::int64_t>;

// Strides, and the least and the greatest index that they reach.
struct Layout {
  Numbers strides;
  std::int64_t least = 0, greatest = 0;
  std::size_t reach() const { return static_cast<std::size_t>(greatest - least + 1); }
};

Layout layout_of(const Numbers& sizes, Numbers strides) {
  Layout layout{std::move(strides)};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t last = std::max<std::int64_t>(sizes[i] - 1, 0) * layout.strides[i];
    (last < 0 ? layout.least : layout.greatest) += last;
  }
  return layout;
}

// Dimensions from the outermost in memory to the innermost, whose elements lie `step` apart.
Layout packed(const Numbers& sizes, const std::vector<std::size_t>& order, std::int64_t step = 1) {
  Numbers strides(sizes.size());
  std::int64_t stride = step;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<std::int64_t>(sizes[order[i]], 1);
  }
  return layout_of(sizes, strides);
}

Layout packed(const Numbers& sizes) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  return packed(sizes, order);
}

std::int64_t dot(const Numbers& a, const Numbers& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), std::int64_t{0});
}

std::string text(const Numbers& numbers) {
  std::string out;
  for (const std::int64_t number : numbers) out += std::to_string(number) + " ";
  return out;
}

// Pieces in this many shares, from the last to the first.
void check(DType from, DType to, const Numbers& sizes, const Layout& source, const Layout& target,
           Stores stores = Stores::Cached, std::size_t shares = 1) {
  constexpr std::byte kCanary{0xa5};
  const std::size_t from_size = kernels::element_size(from), to_size = kernels::element_size(to);
  std::mt19937 random(7);
  std::vector<std::uint32_t> values(source.reach());
  for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(random());
  std::vector<std::byte> memory(target.reach() * to_size + 128, kCanary), expected = memory;

  const std::byte* first_source = reinterpret_cast<const std::byte*>(values.data()) -
                                  source.least * static_cast<std::int64_t>(from_size);
  const std::int64_t first_target = 64 - target.least * static_cast<std::int64_t>(to_size);
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  Numbers index(sizes.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = dot(index, source.strides) - source.least;
    const std::uint32_t bits =
        reference_cast(from, to, element(from, values.data(), static_cast<std::size_t>(at)));
    const std::int64_t to_byte =
        first_target + dot(index, target.strides) * static_cast<std::int64_t>(to_size);
    std::memcpy(expected.data() + to_byte, &bits, to_size);
    for (std::size_t d = sizes.size(); d-- > 0 && ++index[d] == sizes[d];) index[d] = 0;
  }

  const StridedCast cast(from, to, sizes, source.strides, target.strides);
  const std::size_t share = (cast.pieces() + shares - 1) / shares;
  for (std::size_t i = shares; i-- > 0;) {
    cast.run(first_source, memory.data() + first_target, std::min(i * share, cast.pieces()),
             std::min((i + 1) * share, cast.pieces()), stores);
  }
  CHECK_MESSAGE(memory == expected, dtype_name(from)
                                        << " -> " << dtype_name(to) << ", sizes " << text(sizes)
                                        << ", source strides " << text(source.strides)
                                        << ", target strides " << text(target.strides) << ", "
                                        << shares << " shares");
}

}  // namespace

TEST_CASE("arrays of any order, gaps and directions") {
  std::mt19937 random(3);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  constexpr DType kTypes[] = {F32, BF16, F16};
  for (int round = 0; round < 3000; ++round) {
    Numbers sizes(below(6));
    for (std::int64_t& size : sizes) size = std::int64_t{1} + static_cast<std::int64_t>(below(9));
    if (!sizes.empty()) sizes[below(sizes.size())] += static_cast<std::int64_t>(below(70));
    const auto any_layout = [&] {
      std::vector<std::size_t> order(sizes.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      Numbers wider = sizes;
      for (std::int64_t& size : wider) size += below(3) == 0 ? 2 : 0;
      Numbers strides = packed(wider, order, below(4) == 0 ? 2 : 1).strides;
      for (std::int64_t& stride : strides) stride *= below(4) == 0 ? -1 : 1;
      return strides;
    };
    Numbers source = any_layout();
    for (std::int64_t& stride : source) stride *= below(8) == 0 ? 0 : 1;
    const std::size_t from = below(3);
    check(kTypes[from], kTypes[(from + 1 + below(2)) % 3], sizes, layout_of(sizes, source),
          layout_of(sizes, any_layout()), Stores::Cached, 1 + below(4));
  }
}

TEST_CASE("large ones are cut into pieces that any thread may do") {
  const struct {
    const char* id;
    Numbers sizes;
    std::vector<std::size_t> order;  // of the source
  } cases[] = {{"one run", {300'001}, {0}},
               {"a matrix", {300, 1001}, {0, 1}},
               {"a transposed matrix", {1001, 300}, {1, 0}},
               {"long and transposed", {100'003, 3}, {1, 0}},
               {"wide and transposed", {3, 100'003}, {1, 0}},
               {"a batch of transposed matrices", {5, 130, 200}, {0, 2, 1}},
               {"channels-last", {4, 16, 65, 64}, {0, 2, 3, 1}},
               {"reversed", {40, 50, 60}, {2, 1, 0}},
               {"many small matrices", {3000, 4, 5}, {0, 2, 1}}};
  for (const auto& [id, sizes, order] : cases) {
    CAPTURE(id);
    const Layout source = packed(sizes, order), target = packed(sizes);
    CHECK(StridedCast(F32, BF16, sizes, source.strides, target.strides).pieces() >= 4);
    for (const std::size_t shares : {1, 2, 7}) {
      for (const Stores stores : {Stores::Cached, Stores::Streaming}) {
        check(F32, BF16, sizes, source, target, stores, shares);
        check(F16, F32, sizes, source, target, stores, shares);
      }
    }
    check(F32, BF16, sizes, target, source, Stores::Cached, 3);
    check(F32, F16, sizes, packed(sizes, order, 2), packed(sizes, order, 3), Stores::Cached, 3);
  }
}

TEST_CASE("a share worth a thread is 32 Ki elements, in one run or in many") {
  const auto share = [](const Numbers& sizes, const std::vector<std::size_t>& order) {
    const StridedCast cast(F32, BF16, sizes, packed(sizes, order).strides, packed(sizes).strides);
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    return static_cast<double>(count) * static_cast<double>(cast.grain()) /
           static_cast<double>(cast.pieces());
  };
  constexpr double kWorth = 1 << 15;
  CHECK(share({1 << 22}, {0}) == doctest::Approx(kWorth));
  CHECK(share({1024, 4096}, {1, 0}) == doctest::Approx(kWorth));
  CHECK(share({1 << 16, 4, 8}, {0, 2, 1}) == doctest::Approx(kWorth));
}

TEST_CASE("an empty array has no pieces, a single element one") {
  CHECK(StridedCast(F32, BF16, Numbers{3, 0, 4}, Numbers{0, 4, 1}, Numbers{0, 4, 1}).pieces() == 0);
  CHECK(StridedCast(F32, BF16, {}, {}, {}).pieces() == 1);
  check(F32, BF16, {}, Layout{}, Layout{});
  check(F32, BF16, {1, 1}, layout_of({1, 1}, {5, 7}), layout_of({1, 1}, {9, -3}));
}

TEST_CASE("what is no cast is refused, also of nothing") {
  CHECK_THROWS_AS(StridedCast(F32, F32, Numbers{0}, Numbers{1}, Numbers{1}), std::invalid_argument);
  CHECK_THROWS_AS(StridedCast(DType::Float64, F32, {}, {}, {}), std::invalid_argument);
}
