#include "call/int8_windows.h"

#include <ATen/ATen.h>

#include <cstring>
#include <optional>

#include "cast/parallel.h"

namespace habana_mp {
namespace {

// The places of windows in memory, one after the other.
class Places {
 public:
  Places(at::IntArrayRef sizes, at::IntArrayRef strides, std::int64_t first)
      : sizes_(sizes), strides_(strides), index_(sizes.size(), 0) {
    for (std::size_t i = sizes.size(); i-- > 0; first /= sizes[i]) {
      index_[i] = first % sizes[i];
      offset_ += index_[i] * strides[i];
    }
  }
  std::int64_t offset() const { return offset_; }
  void advance() {
    for (std::size_t i = sizes_.size(); i-- > 0;) {
      offset_ += strides_[i];
      if (++index_[i] < sizes_[i]) return;
      offset_ -= sizes_[i] * strides_[i];
      index_[i] = 0;
    }
  }

 private:
  at::IntArrayRef sizes_, strides_;
  at::DimVector index_;
  std::int64_t offset_ = 0;
};

// Whether places follow each other at one stride, which is returned.
std::optional<std::int64_t> stride_of_all(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::optional<std::int64_t> stride;
  std::int64_t next = 0;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (stride && strides[i] != next) return std::nullopt;
    if (!stride) stride = strides[i];
    next = strides[i] * sizes[i];
  }
  return stride.value_or(1);
}

}  // namespace

at::Tensor windows_in(const at::Tensor& images, at::IntArrayRef kernel,
                      const Int8Windows& windows) {
  at::DimVector pads{0, 0};
  for (std::size_t i = windows.before.size(); i-- > 0;) {
    pads.push_back(windows.before[i]);
    pads.push_back(windows.after[i]);
  }
  const bool padded = std::ranges::any_of(pads, [](std::int64_t each) { return each != 0; });
  const at::Tensor all = padded ? at::constant_pad_nd(images, pads, 0) : images;
  at::DimVector sizes{all.size(0)}, strides{all.stride(0)};
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    const auto dim = static_cast<std::int64_t>(i) + 1;
    const std::int64_t reach = windows.dilation[i] * (kernel[i] - 1) + 1;
    sizes.push_back((all.size(dim) - reach) / windows.stride[i] + 1);
    strides.push_back(all.stride(dim) * windows.stride[i]);
  }
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    sizes.push_back(kernel[i]);
    strides.push_back(all.stride(static_cast<std::int64_t>(i) + 1) * windows.dilation[i]);
  }
  sizes.push_back(all.size(-1));
  strides.push_back(all.stride(-1));
  return all.as_strided(sizes, strides, all.storage_offset());
}

WindowParts parts_of_windows(const at::Tensor& windows, std::size_t dims) {
  const at::IntArrayRef sizes = windows.sizes(), strides = windows.strides();
  WindowParts parts{dims, stride_of_all(sizes.slice(0, dims), strides.slice(0, dims)), 1, {}};
  std::size_t end = sizes.size();
  for (; end > dims && (sizes[end - 1] == 1 || strides[end - 1] == parts.length); --end)
    parts.length *= sizes[end - 1];
  Places place(sizes.slice(dims, end - dims), strides.slice(dims, end - dims), 0);
  std::int64_t count = 1;
  for (const std::int64_t size : sizes.slice(dims, end - dims)) count *= size;
  for (; count > 0; --count, place.advance()) parts.from.push_back(place.offset());
  return parts;
}

void find_windows(const at::Tensor& windows, std::size_t dims, std::int64_t first,
                  std::span<std::ptrdiff_t> rows) {
  const std::int64_t length = windows.sizes()[dims - 1], step = windows.strides()[dims - 1];
  Places line(windows.sizes().slice(0, dims - 1), windows.strides().slice(0, dims - 1),
              first / length);
  std::int64_t place = first % length;
  for (std::ptrdiff_t& row : rows) {
    row = line.offset() + place * step;
    if (++place < length) continue;
    place = 0;
    line.advance();
  }
}

at::Tensor rows_of_windows(const at::Tensor& windows, std::size_t dims, std::int64_t inputs,
                           std::int64_t filled) {
  const std::int64_t rows = windows.numel() / inputs;
  const WindowParts parts = parts_of_windows(windows, dims);
  if (filled == inputs && parts.length == inputs && parts.stride)
    return windows.as_strided({rows, inputs}, {*parts.stride, 1}, windows.storage_offset());
  const at::Tensor made = at::empty({rows, filled}, windows.options());
  const auto size = static_cast<std::int64_t>(windows.itemsize());
  const auto* source = static_cast<const std::byte*>(windows.const_data_ptr());
  auto* target = static_cast<std::byte*>(made.mutable_data_ptr());
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / filled);
  in_parallel(0, rows, grain, [&](std::int64_t first, std::int64_t last) {
    Places place(windows.sizes().slice(0, dims), windows.strides().slice(0, dims), first);
    const auto bytes = static_cast<std::size_t>(parts.length * size);
    for (std::int64_t row = first; row < last; ++row, place.advance()) {
      std::byte* to = target + row * filled * size;
      for (const std::ptrdiff_t from : parts.from) {
        std::memcpy(to, source + (place.offset() + from) * size, bytes);
        to += bytes;
      }
      std::memset(to, 0, static_cast<std::size_t>((filled - inputs) * size));
    }
  });
  return made;
}

}  // namespace habana_mp
