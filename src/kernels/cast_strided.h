// The cast of an array of any number of dimensions and any strides, as a plan whose work may be
// shared among threads. It must not know Python, torch, threads or why something is cast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cast_kernels.h"

namespace habana_mp::kernels {

// Strides are counted in elements and may have any sign; those of the target keep its elements
// apart. Source and target do not overlap.
//
//   const StridedCast cast(from, to, sizes, source_strides, target_strides);
//   cast.run(source, target, 0, cast.pieces());                                 // in one go
//   parallel_for(0, cast.pieces(), cast.grain(), [&](auto begin, auto end) {    // or by threads
//     cast.run(source, target, begin, end);
//   });
class StridedCast {
 public:
  // std::invalid_argument where there is no such cast.
  StridedCast(DType from, DType to, std::span<const std::int64_t> sizes,
              std::span<const std::int64_t> source_strides,
              std::span<const std::int64_t> target_strides);

  // The work is cut into pieces that can be done in any order, each by another thread. None where
  // the array is empty.
  std::size_t pieces() const { return pieces_; }

  // So many pieces are worth a thread.
  std::size_t grain() const { return grain_; }

  // The pointers are those of the element whose indices are all 0.
  void run(const void* source, void* target, std::size_t begin, std::size_t end,
           Stores stores = Stores::Cached) const;

 private:
  struct Dimension {
    std::int64_t size, source_stride, target_stride;
  };
  struct Place {
    const std::byte* source;
    std::byte* target;
  };

  void add(Dimension dimension);
  void cut();
  Place matrix_at(std::size_t index, Place first) const;
  void cast_block(Place first, std::size_t row, std::size_t column, std::size_t rows,
                  std::size_t columns, Stores stores) const;

  DType from_, to_;
  std::vector<Dimension> outer_;  // of the matrices, from the outermost of the target
  Dimension rows_{1, 0, 0}, columns_{1, 1, 1};
  // Where all indices are 0, once every stride of the target is positive.
  std::int64_t source_start_ = 0, target_start_ = 0;
  // A matrix is cut across into strips and each strip along into pieces; neighbours in a strip are
  // cast as one.
  bool along_rows_ = true;
  std::size_t step_ = 1, strip_ = 1, pieces_per_strip_ = 1, strips_ = 1, pieces_ = 0, grain_ = 1;
};

}  // namespace habana_mp::kernels
