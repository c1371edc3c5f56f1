#include "weights/packed_weight.h"

#include "base/torch_private.h"

namespace habana_mp {
namespace {

torch_private::ConvolutionNumbers numbers_of(const at::Tensor& weight, const Convolution& of) {
  const auto dims = static_cast<std::size_t>(weight.dim() - 2);
  return {at::IntArrayRef(of.padding.data(), dims), at::IntArrayRef(of.stride.data(), dims),
          at::IntArrayRef(of.dilation.data(), dims), of.groups};
}

}  // namespace

bool can_pack(DType dtype) {
  static const bool bfloat16 = torch_private::packs(at::kBFloat16);
  static const bool float16 = torch_private::packs(at::kHalf);
  return dtype == DType::BFloat16 ? bfloat16 : dtype == DType::Float16 && float16;
}

at::Tensor pack(const at::Tensor& low, const Form& form, at::IntArrayRef images) {
  const at::Tensor weight = low.detach();
  if (form.layout == Layout::Convolution) {
    return torch_private::pack_convolution(weight, numbers_of(weight, form.convolution), images);
  }
  return torch_private::pack_linear(form.layout == Layout::Addmm ? weight.t() : weight);
}

bool is_packed_from(const at::Tensor& copy, const Form& form, const at::Tensor& weight) {
  if (form.layout == Layout::Convolution) {
    return copy.sizes() == weight.sizes() &&
           (form.channels_last ? channels_come_last(weight) : weight.is_contiguous());
  }
  if (weight.dim() != 2 || !weight.is_contiguous()) return false;
  const bool turned = form.layout == Layout::Addmm;
  return copy.size(0) == weight.size(turned ? 1 : 0) && copy.size(1) == weight.size(turned ? 0 : 1);
}

std::size_t bytes_of_copy(const at::Tensor& copy) {
  return copy.is_mkldnn() ? torch_private::packed_bytes(copy) : copy.nbytes();
}

at::Tensor onednn_convolution(const at::Tensor& images, const at::Tensor& packed,
                              const at::Tensor& bias, const Convolution& convolution) {
  return torch_private::packed_convolution(images, packed, bias, numbers_of(packed, convolution));
}

}  // namespace habana_mp
