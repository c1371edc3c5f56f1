#include "weights/weight.h"

#include <torch/csrc/autograd/python_variable.h>

#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "cast/numbers.h"

namespace habana_mp {
namespace {

bool is_parameter(const at::TensorBase& tensor) {
  const PyObject* object = torch_private::python_object(tensor);
  return object != nullptr && Py_TYPE(object) == reinterpret_cast<PyTypeObject*>(ParameterClass);
}

}  // namespace

bool is_model_weight(const at::Tensor& tensor) {
  return tensor.is_leaf() && (tensor.requires_grad() || is_parameter(viewed_by(tensor)));
}

const at::TensorBase& viewed_by(const at::TensorBase& tensor) {
  return tensor.is_view() ? tensor._base() : tensor;
}

bool may_be_weight(const at::Tensor& tensor) {
  const DType dtype = dtype_of(tensor);
  // Not float8: a copy would take the memory that it saves (D49).
  if ((dtype != DType::Float32 && !may_be_low(dtype)) ||
      tensor.numel() < smallest_weight(tensor.dim()) || !tensor.is_leaf() ||
      tensor.is_inference() || !tensor.is_non_overlapping_and_dense()) {
    return false;
  }
  // Images that require grad are as small as weights of convolutions, and change at every call.
  const bool small = tensor.numel() < smallest_weight(/*dims=*/2);
  return (tensor.requires_grad() && !small) || is_parameter(tensor);
}

bool is_weight(const at::Tensor& tensor) { return is_ordinary(tensor) && may_be_weight(tensor); }

std::size_t known_holds(const at::Tensor& weight) {
  return weight.use_count() == 1 ? 1 : torch_private::most_known_holds(weight);
}

}  // namespace habana_mp
