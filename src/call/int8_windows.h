// Windows of images as rows of a product, out of autograd's sight.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace habana_mp {

// One number for each dimension of an image; the padding before and after it.
struct Int8Windows {
  at::DimVector stride, before, after, dilation;
  std::int64_t groups;
};

// Images (count x sizes x channels) with their padding, as windows: count x places x kernel x
// channels.
at::Tensor windows_in(const at::Tensor& images, at::IntArrayRef kernel, const Int8Windows& windows);

// How windows lie, whose places are the first `dims` dimensions.
struct WindowParts {
  std::size_t dims;
  std::optional<std::int64_t> stride;        // at which all windows follow each other
  std::int64_t length;                       // numbers that follow each other
  c10::SmallVector<std::ptrdiff_t, 9> from;  // where each such part begins, from that of its window
};
WindowParts parts_of_windows(const at::Tensor& windows, std::size_t dims);

// Where windows begin, from the row `first` on, as many as `rows` has numbers.
void find_windows(const at::Tensor& windows, std::size_t dims, std::int64_t first,
                  std::span<std::ptrdiff_t> rows);

// Windows as rows for a kernel, which may overlap, with zeros from `inputs` to before `filled`.
// Copied only where they do not lie so. Their places are the first `dims` dimensions.
at::Tensor rows_of_windows(const at::Tensor& windows, std::size_t dims, std::int64_t inputs,
                           std::int64_t filled);

// Calls act(some of the windows, their first row) for all of them in turn, not more than `most` at
// once. Their places are the first `dims` dimensions.
template <typename Act>
void for_each_block(const at::Tensor& windows, std::size_t dims, std::int64_t most, const Act& act,
                    std::int64_t row = 0) {
  const std::int64_t count = windows.size(0);
  std::int64_t each = 1;
  for (const std::int64_t size : windows.sizes().slice(1, dims - 1)) each *= size;
  if (dims > 1 && each > most) {
    for (std::int64_t i = 0; i < count; ++i)
      for_each_block(windows.select(0, i), dims - 1, most, act, row + i * each);
    return;
  }
  const std::int64_t step = std::max<std::int64_t>(1, most / std::max<std::int64_t>(1, each));
  for (std::int64_t i = 0; i < count; i += step)
    act(windows.narrow(0, i, std::min(step, count - i)), row + i * each);
}

}  // namespace habana_mp
