// The cast of matrices of any strides, in every variant, against cast_reference.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cast_reference.h"
#include "kernels/cast_kernels.h"

using namespace habana_mp;
using kernels::Stores;
using kernels::Variant;

namespace {

constexpr DType F16 = DType::Float16, BF16 = DType::BFloat16, F32 = DType::Float32;

struct Layout {
  const char* id;
  std::ptrdiff_t row_stride, column_stride;
};

std::vector<Layout> layouts_of(std::size_t rows, std::size_t columns) {
  const auto r = static_cast<std::ptrdiff_t>(rows), c = static_cast<std::ptrdiff_t>(columns);
  return {{"contiguous", c, 1},
          {"rows apart", c + 3, 1},
          {"transposed", 1, r},
          {"transposed, columns apart", 1, r + 5},
          {"every second", 2 * c, 2},
          {"transposed, every second", 2, 2 * r},
          {"one row for all", 0, 1},
          {"one column for all", 1, 0},
          {"one element for all", 0, 0},
          {"rows from the last", -c, 1},
          {"transposed, columns from the last", 1, -r},
          {"all from the last", -c, -1}};
}

// Random bits, of which no two calls use the same; large enough for every layout.
std::vector<std::uint32_t> random_bits(std::size_t count) {
  std::mt19937 random(11);
  std::vector<std::uint32_t> bits(count);
  for (std::uint32_t& value : bits) value = static_cast<std::uint32_t>(random());
  return bits;
}

// The rows of the target lie `gap` elements apart.
void check_matrix(DType from, DType to, std::size_t rows, std::size_t columns, std::size_t gap,
                  Stores stores, std::size_t target_offset) {
  constexpr std::byte kCanary{0xa5};
  const std::size_t to_size = kernels::element_size(to), row_bytes = (columns + gap) * to_size;
  const std::size_t bytes = rows * row_bytes;
  const std::size_t half = 2 * (rows + 8) * (columns + 8);
  const std::vector<std::uint32_t> source = random_bits(2 * half);
  std::vector<std::byte> memory(bytes + 256), expected(bytes, kCanary);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::byte* const target = memory.data() + (64 - address % 64) + target_offset;
  for (const Layout& layout : layouts_of(rows, columns)) {
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t column = 0; column < columns; ++column) {
        const std::ptrdiff_t index = static_cast<std::ptrdiff_t>(half) +
                                     static_cast<std::ptrdiff_t>(row) * layout.row_stride +
                                     static_cast<std::ptrdiff_t>(column) * layout.column_stride;
        const std::uint32_t result =
            reference_cast(from, to, element(from, source.data(), static_cast<std::size_t>(index)));
        std::memcpy(expected.data() + row * row_bytes + column * to_size, &result, to_size);
      }
    }
    const auto* bytes_of_source = reinterpret_cast<const std::byte*>(source.data());
    for (const Variant variant : kernels::available()) {
      kernels::force(variant);
      std::fill(memory.begin(), memory.end(), kCanary);
      kernels::cast_2d(from, to, bytes_of_source + half * kernels::element_size(from),
                       layout.row_stride, layout.column_stride, target,
                       static_cast<std::ptrdiff_t>(columns + gap), rows, columns, stores);
      const auto is_canary = [](std::byte byte) { return byte == kCanary; };
      const bool inside = std::equal(expected.begin(), expected.end(), target);
      const bool outside = std::all_of(memory.data(), target, is_canary) &&
                           std::all_of(target + bytes, memory.data() + memory.size(), is_canary);
      CHECK_MESSAGE((inside && outside), kernels::variant_name(variant)
                                             << ": " << dtype_name(from) << " -> " << dtype_name(to)
                                             << ", " << rows << " x " << columns << " + " << gap
                                             << ", " << layout.id);
    }
    kernels::reset();
  }
}

}  // namespace

TEST_CASE("matrices of any shape and strides") {
  constexpr std::size_t kSides[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 130};
  for (const DType from : {F32, F16, BF16}) {
    for (const DType to : {F32, F16, BF16}) {
      if (from == to) continue;
      for (const std::size_t rows : kSides) {
        for (const std::size_t columns : kSides) {
          for (const std::size_t gap : {0, 3}) {
            check_matrix(from, to, rows, columns, gap, Stores::Cached, rows % 3);
          }
        }
      }
    }
  }
}

TEST_CASE("streamed matrices") {
  for (const auto& [from, to] : {std::pair{F32, BF16}, {BF16, F32}, {F32, F16}, {F16, BF16}}) {
    for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{64, 64},
                                        {128, 192},
                                        {200, 160},
                                        {192, 100},
                                        {3, 4096},
                                        {2, 4103}}) {
      for (const std::size_t gap : {0, 3, 64}) {
        check_matrix(from, to, rows, columns, gap, Stores::Streaming, 0);
        check_matrix(from, to, rows, columns, gap, Stores::Streaming, 2);
      }
    }
  }
}

TEST_CASE("a matrix of what is no cast is refused, also an empty one") {
  CHECK_THROWS_AS(kernels::cast_2d(F32, F32, nullptr, 1, 1, nullptr, 1, 0, 0),
                  std::invalid_argument);
}
