// Orders and merges dimensions until what is left is matrices. See cast_strided.h.
#include "kernels/cast_strided.h"

#include <algorithm>
#include <cstring>

namespace habana_mp::kernels {
namespace {

// Elements. A share of this size is worth a thread (torch's own grain), smaller pieces share
// better.
constexpr std::size_t kGrain = 1 << 15, kPiece = 1 << 13;

// A transposed source is read in tiles of 64 by 64.
constexpr std::size_t kTile = 64;

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace

StridedCast::StridedCast(DType from, DType to, std::span<const std::int64_t> sizes,
                         std::span<const std::int64_t> source_strides,
                         std::span<const std::int64_t> target_strides)
    : from_(from), to_(to) {
  kernel(from, to);  // throws where there is none
  outer_.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return;
    if (sizes[i] != 1) add({sizes[i], source_strides[i], target_strides[i]});
  }
  // Two dimensions that both arrays walk as one are one.
  for (std::size_t i = outer_.size(); i-- > 1;) {
    Dimension &outside = outer_[i - 1], &inside = outer_[i];
    if (outside.source_stride == inside.size * inside.source_stride &&
        outside.target_stride == inside.size * inside.target_stride) {
      outside = {outside.size * inside.size, inside.source_stride, inside.target_stride};
      outer_.erase(outer_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (!outer_.empty()) {
    columns_ = outer_.back();
    outer_.pop_back();
  }
  if (!outer_.empty()) {
    // The rows are the dimension along which the source is contiguous, if one is.
    auto rows = std::prev(outer_.end());
    if (columns_.source_stride != 1) {
      const auto contiguous = std::find_if(outer_.begin(), outer_.end(), [](const Dimension& one) {
        return one.source_stride == 1;
      });
      if (contiguous != outer_.end()) rows = contiguous;
    }
    rows_ = *rows;
    outer_.erase(rows);
  }
  cut();
}

// In the order of the target's strides, which are made positive.
void StridedCast::add(Dimension dimension) {
  if (dimension.target_stride < 0) {
    source_start_ += (dimension.size - 1) * dimension.source_stride;
    target_start_ += (dimension.size - 1) * dimension.target_stride;
    dimension.source_stride = -dimension.source_stride;
    dimension.target_stride = -dimension.target_stride;
  }
  const auto after = std::find_if(outer_.begin(), outer_.end(), [&](const Dimension& other) {
    return other.target_stride < dimension.target_stride;
  });
  outer_.insert(after, dimension);
}

void StridedCast::cut() {
  const auto rows = static_cast<std::size_t>(rows_.size);
  const auto columns = static_cast<std::size_t>(columns_.size);
  const bool transposed = columns_.source_stride != 1 && rows_.source_stride == 1;
  along_rows_ = transposed || columns < kPiece;
  if (along_rows_) {
    strip_ = transposed ? std::min(columns, kTile) : columns;
    step_ = std::max(kPiece / strip_, std::size_t{1});
    if (transposed) step_ = divide_up(step_, kTile) * kTile;
  } else {
    strip_ = 1;
    step_ = kPiece;
  }
  pieces_per_strip_ = divide_up(along_rows_ ? rows : columns, step_);
  strips_ = divide_up(along_rows_ ? columns : rows, strip_);
  pieces_ = pieces_per_strip_ * strips_;
  std::size_t elements = rows * columns;
  for (const Dimension& dimension : outer_) {
    pieces_ *= static_cast<std::size_t>(dimension.size);
    elements *= static_cast<std::size_t>(dimension.size);
  }
  grain_ = std::max(kGrain / divide_up(elements, pieces_), std::size_t{1});
}

StridedCast::Place StridedCast::matrix_at(std::size_t index, Place first) const {
  std::int64_t source = source_start_, target = target_start_;
  for (std::size_t i = outer_.size(); i-- > 0;) {
    const auto size = static_cast<std::size_t>(outer_[i].size);
    const auto at = static_cast<std::int64_t>(index % size);
    index /= size;
    source += at * outer_[i].source_stride;
    target += at * outer_[i].target_stride;
  }
  return {first.source + source * static_cast<std::int64_t>(element_size(from_)),
          first.target + target * static_cast<std::int64_t>(element_size(to_))};
}

void StridedCast::run(const void* source, void* target, std::size_t begin, std::size_t end,
                      Stores stores) const {
  const Place first{static_cast<const std::byte*>(source), static_cast<std::byte*>(target)};
  const auto length = static_cast<std::size_t>(along_rows_ ? rows_.size : columns_.size);
  const auto width = static_cast<std::size_t>(along_rows_ ? columns_.size : rows_.size);
  while (begin < end) {
    const std::size_t piece = begin % pieces_per_strip_, strip = begin / pieces_per_strip_;
    const std::size_t count = std::min(end - begin, pieces_per_strip_ - piece);
    const std::size_t across = strip % strips_ * strip_, along = piece * step_;
    const std::size_t breadth = std::min(strip_, width - across);
    const std::size_t depth = std::min(count * step_, length - along);
    const Place matrix = matrix_at(strip / strips_, first);
    if (along_rows_) {
      cast_block(matrix, along, across, depth, breadth, stores);
    } else {
      cast_block(matrix, across, along, breadth, depth, stores);
    }
    begin += count;
  }
}

void StridedCast::cast_block(Place first, std::size_t row, std::size_t column, std::size_t rows,
                             std::size_t columns, Stores stores) const {
  const auto place = [&](std::size_t i, std::size_t j) -> Place {
    const auto at_row = static_cast<std::int64_t>(i), at_column = static_cast<std::int64_t>(j);
    return {first.source + (at_row * rows_.source_stride + at_column * columns_.source_stride) *
                               static_cast<std::int64_t>(element_size(from_)),
            first.target + (at_row * rows_.target_stride + at_column * columns_.target_stride) *
                               static_cast<std::int64_t>(element_size(to_))};
  };
  if (columns_.target_stride == 1) {
    const Place start = place(row, column);
    cast_2d(from_, to_, start.source, rows_.source_stride, columns_.source_stride, start.target,
            rows_.target_stride, rows, columns, stores);
    return;
  }
  // The target is contiguous nowhere: its elements are scattered one by one, a run at a time.
  constexpr std::size_t kRun = 512;
  constexpr std::size_t kLargest = std::ranges::max(kDTypes, {}, &DTypeRow::bytes).bytes;
  alignas(64) std::byte run[kRun * kLargest];
  const std::size_t size = element_size(to_);
  for (std::size_t i = row; i < row + rows; ++i) {
    for (std::size_t j = column; j < column + columns; j += kRun) {
      const std::size_t count = std::min(kRun, column + columns - j);
      cast_2d(from_, to_, place(i, j).source, 0, columns_.source_stride, run, 0, 1, count);
      for (std::size_t k = 0; k < count; ++k) {
        std::memcpy(place(i, j + k).target, run + k * size, size);
      }
    }
  }
}

}  // namespace habana_mp::kernels
