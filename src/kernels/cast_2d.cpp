// The cast of a matrix of any strides. See cast_kernels.h.
#include <algorithm>
#include <cstring>

#include "kernels/cast_kernels.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace habana_mp::kernels {
namespace {

// A tile is turned in the first cache: 64 by 64 of the low type are 8 KiB. Its rows are whole cache
// lines, so that a source or target whose rows are a power of two apart does not evict itself.
constexpr std::size_t kTile = 64;

// Shorter rows are not worth the fence at their end and the lines that they share (measured).
constexpr std::size_t kStreamedRow = 4096;

using Low = std::uint16_t;
using Wide = std::uint32_t;
static_assert(std::ranges::all_of(kDTypes,
                                  [](const DTypeRow& row) {
                                    return !row.eligible || row.bytes == sizeof(Low) ||
                                           row.bytes == sizeof(Wide);
                                  }),
              "an eligible dtype of a size that is not turned or gathered here");
typedef Low Eight __attribute__((vector_size(16)));

// Three perfect shuffles of eight rows turn them: each rotates the six bits of an element's place,
// and three of those are its row.
void turn_8x8(const Low* source, Low* target) {
  Eight rows[8], next[8];
  for (std::size_t i = 0; i < 8; ++i) std::memcpy(&rows[i], source + i * kTile, sizeof rows[i]);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 4; ++i) {
      next[2 * i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    std::copy(next, next + 8, rows);
  }
  for (std::size_t i = 0; i < 8; ++i) std::memcpy(target + i * kTile, &rows[i], sizeof rows[i]);
}

void turn(const Low* source, Low* target, std::size_t source_rows, std::size_t source_columns) {
  for (std::size_t row = 0; row < source_rows; row += 8) {
    for (std::size_t column = 0; column < source_columns; column += 8) {
      turn_8x8(source + row * kTile + column, target + column * kTile + row);
    }
  }
}

struct Matrix {
  const std::byte* source;
  std::ptrdiff_t row_stride, column_stride;  // in bytes
  std::byte* target;
  std::ptrdiff_t target_row_stride;  // in bytes
  std::size_t rows, columns, source_size, target_size;

  const std::byte* at(std::size_t row, std::size_t column) const {
    return source + static_cast<std::ptrdiff_t>(row) * row_stride +
           static_cast<std::ptrdiff_t>(column) * column_stride;
  }
  std::byte* target_at(std::size_t row, std::size_t column) const {
    return target + static_cast<std::ptrdiff_t>(row) * target_row_stride +
           static_cast<std::ptrdiff_t>(column * target_size);
  }
};

// Past the caches, by what every x86-64 has; rows of a tile are whole cache lines.
void stream_row(std::byte* target, const std::byte* source, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(source + i)));
  }
#else
  std::memcpy(target, source, bytes);
#endif
}

// The columns of the source are contiguous. What is turned is always the low type: before the cast
// where it is the source, after it where it is the target. A whole tile has constant bounds, and
// may be streamed.
template <bool kWhole, Stores kStores>
void cast_tile(const Matrix& matrix, Kernel cast, std::size_t row, std::size_t column, Low* tile,
               Low* turned) {
  const std::size_t rows = kWhole ? kTile : std::min(kTile, matrix.rows - row);
  const std::size_t columns = kWhole ? kTile : std::min(kTile, matrix.columns - column);
  const bool narrows = matrix.target_size == sizeof(Low);
  const bool prefetches = kStores == Stores::Streaming && row + 2 * kTile <= matrix.rows;
  for (std::size_t i = 0; i < columns; ++i) {
    const std::byte* run = matrix.at(row, column + i);
    if (narrows) {
      cast(run, tile + i * kTile, rows);
    } else {
      std::memcpy(tile + i * kTile, run, rows * sizeof(Low));
    }
    if (prefetches) {  // no hardware follows 64 runs at once
      const std::byte* next = run + kTile * matrix.source_size;
      for (std::size_t j = 0; j < kTile * matrix.source_size; j += 64) __builtin_prefetch(next + j);
    }
  }
  turn(tile, turned, columns, rows);
  for (std::size_t i = 0; i < rows; ++i) {
    std::byte* run = matrix.target_at(row + i, column);
    const Low* from = turned + i * kTile;
    if (kStores == Stores::Cached) {
      if (narrows) {
        std::memcpy(run, from, columns * sizeof(Low));
      } else {
        cast(from, run, columns);
      }
    } else if (narrows) {
      stream_row(run, reinterpret_cast<const std::byte*>(from), kTile * sizeof(Low));
    } else {
      alignas(64) std::byte wide[kTile * sizeof(Wide)];
      cast(from, wide, kTile);
      stream_row(run, wide, sizeof wide);
    }
  }
}

template <Stores kStores>
void cast_transposed(const Matrix& matrix, Kernel cast) {
  alignas(64) Low tile[kTile * kTile] = {};
  alignas(64) Low turned[kTile * kTile];
  // Down the columns: the runs of the source go on where the last tile left them.
  for (std::size_t column = 0; column < matrix.columns; column += kTile) {
    for (std::size_t row = 0; row < matrix.rows; row += kTile) {
      if (row + kTile <= matrix.rows && column + kTile <= matrix.columns) {
        cast_tile<true, kStores>(matrix, cast, row, column, tile, turned);
      } else {
        cast_tile<false, Stores::Cached>(matrix, cast, row, column, tile, turned);
      }
    }
  }
#if defined(__x86_64__)
  if (kStores == Stores::Streaming) _mm_sfence();
#endif
}

// Lines written in part cost more than lines read and written.
bool rows_are_whole_lines(const Matrix& matrix) {
  return reinterpret_cast<std::uintptr_t>(matrix.target) % 64 == 0 &&
         matrix.target_row_stride % 64 == 0;
}

// Neither rows nor columns are contiguous: elements are gathered one by one, a run at a time.
template <typename Element>
void cast_gathered(const Matrix& matrix, Kernel cast) {
  constexpr std::size_t kRun = 512;
  alignas(64) Element run[kRun];
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    for (std::size_t column = 0; column < matrix.columns; column += kRun) {
      const std::size_t count = std::min(kRun, matrix.columns - column);
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(run + i, matrix.at(row, column + i), sizeof(Element));
      }
      cast(run, matrix.target_at(row, column), count);
    }
  }
}

}  // namespace

void cast_2d(DType from, DType to, const void* source, std::ptrdiff_t source_row_stride,
             std::ptrdiff_t source_column_stride, void* target, std::ptrdiff_t target_row_stride,
             std::size_t rows, std::size_t columns, Stores stores) {
  const Kernel cached = kernel(from, to), streaming = kernel(from, to, stores);
  if (rows == 0 || columns == 0) return;
  const Matrix matrix{static_cast<const std::byte*>(source),
                      source_row_stride * static_cast<std::ptrdiff_t>(element_size(from)),
                      source_column_stride * static_cast<std::ptrdiff_t>(element_size(from)),
                      static_cast<std::byte*>(target),
                      target_row_stride * static_cast<std::ptrdiff_t>(element_size(to)),
                      rows,
                      columns,
                      element_size(from),
                      element_size(to)};
  const auto whole = static_cast<std::ptrdiff_t>(columns);
  if (source_column_stride == 1 &&
      (rows == 1 || (source_row_stride == whole && target_row_stride == whole))) {
    streaming(source, target, rows * columns);
  } else if (source_column_stride == 1) {
    const Kernel cast = columns < kStreamedRow ? cached : streaming;
    for (std::size_t row = 0; row < rows; ++row) {
      cast(matrix.at(row, 0), matrix.target_at(row, 0), columns);
    }
  } else if (source_row_stride == 1) {
    if (stores == Stores::Streaming && rows_are_whole_lines(matrix)) {
      cast_transposed<Stores::Streaming>(matrix, cached);
    } else {
      cast_transposed<Stores::Cached>(matrix, cached);
    }
  } else if (matrix.source_size == sizeof(Wide)) {
    cast_gathered<Wide>(matrix, cached);
  } else {
    cast_gathered<Low>(matrix, cached);
  }
}

}  // namespace habana_mp::kernels
