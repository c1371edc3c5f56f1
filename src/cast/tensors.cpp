#include "cast/tensors.h"

#include "policy/decide.h"
#include "cast/numbers.h"

namespace habana_mp {

c10::SmallVector<at::Tensor, 8> tensors_in(c10::ArrayRef<c10::IValue> values) {
  c10::SmallVector<at::Tensor, 8> found;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      found.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) found.push_back(tensor);
    }
  }
  return found;
}

unsigned dtypes_of(Tensors tensors) {
  unsigned seen = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) seen |= dtype_bit(dtype_of(tensor));
  }
  return seen;
}

}  // namespace habana_mp
