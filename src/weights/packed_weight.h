// Weights in the layout that oneDNN's products and convolutions read. torch gives it plain ones,
// which it lays out anew at every call.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/dtype.h"

namespace habana_mp {

// How a copy in the weight cache lies in memory: as its weight, or packed for an op.
enum class Layout : std::uint8_t {
  Plain,
  Linear,       // outputs x inputs, of linear
  Addmm,        // inputs x outputs, of addmm
  Convolution,  // outputs x inputs of a group x the kernel, of conv2d and conv3d
  Int8,         // in 8 bits (int8_weight.h): outputs x inputs, which a convolution has in several
  Int8Turned,   // dimensions; inputs x outputs
};

constexpr bool is_int8(Layout layout) {
  return layout == Layout::Int8 || layout == Layout::Int8Turned;
}

// A number for each dimension of an image; those that there are not stay 0.
using Spatial = std::array<std::int64_t, 3>;

struct Convolution {
  Spatial stride{}, padding{}, dilation{};
  std::int64_t groups = 0;

  friend auto operator<=>(const Convolution&, const Convolution&) = default;
};

// A layout, with all that it depends on: a copy serves calls of its own form alone.
struct Form {
  Layout layout = Layout::Plain;
  Convolution convolution{};
  bool channels_last = false;  // the weight of a convolution

  friend auto operator<=>(const Form&, const Form&) = default;
};

// Whether this torch and this CPU have a packed product of the dtype.
bool can_pack(DType dtype);

// The packed copy of a plain low one, for a layout other than Plain. Of a convolution `images` are
// the sizes of its input: it may have another then, and is the fastest with this one.
at::Tensor pack(const at::Tensor& low, const Form& form, at::IntArrayRef images = {});

// Whether the copy was packed of a weight of these sizes and strides.
bool is_packed_from(const at::Tensor& copy, const Form& form, const at::Tensor& weight);

// Bytes that a copy takes, its padding included.
std::size_t bytes_of_copy(const at::Tensor& copy);

// By oneDNN: images whose channels come last in memory, by a packed weight, plus a bias that may be
// undefined.
at::Tensor onednn_convolution(const at::Tensor& images, const at::Tensor& packed,
                              const at::Tensor& bias, const Convolution& convolution);

// The layout of images, and of the weights of convolutions, that oneDNN computes with.
inline bool channels_come_last(const at::Tensor& tensor) {
  return tensor.is_contiguous(tensor.dim() == 4 ? at::MemoryFormat::ChannelsLast
                                                : at::MemoryFormat::ChannelsLast3d);
}

}  // namespace habana_mp
