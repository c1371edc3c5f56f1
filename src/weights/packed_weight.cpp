#include "weights/packed_weight.h"

#include <optional>

#include "base/torch_private.h"

namespace habana_mp {

bool can_pack(DType dtype) {
  static const bool bfloat16 = torch_private::packs(at::kBFloat16);
  static const bool float16 = torch_private::packs(at::kHalf);
  return dtype == DType::BFloat16 ? bfloat16 : dtype == DType::Float16 && float16;
}

at::Tensor pack(const at::Tensor& low, Layout layout) {
  const at::Tensor weight = low.detach();
  return torch_private::pack_linear(layout == Layout::Addmm ? weight.t() : weight);
}

bool is_packed_from(const at::Tensor& copy, Layout layout, const at::Tensor& weight) {
  if (weight.dim() != 2 || !weight.is_contiguous()) return false;
  const bool turned = layout == Layout::Addmm;
  return copy.size(0) == weight.size(turned ? 1 : 0) && copy.size(1) == weight.size(turned ? 0 : 1);
}

const void* packed_data(const at::Tensor& copy) { return torch_private::packed_data(copy); }

std::size_t bytes_of_copy(const at::Tensor& copy) {
  return copy.is_mkldnn() ? torch_private::packed_bytes(copy) : copy.nbytes();
}

at::Tensor packed_product(const at::Tensor& rows, const at::Tensor& packed,
                          const at::Tensor& bias) {
  return torch_private::packed_linear(rows, packed, bias);
}

}  // namespace habana_mp
