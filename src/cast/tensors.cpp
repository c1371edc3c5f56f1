#include "cast/tensors.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "kernels/cast_kernels.h"
#include "policy/decide.h"

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
    if (tensor.defined()) seen |= dtype_bit(dtype_seen(tensor));
  }
  return seen;
}

std::uint64_t bytes_of(const at::Tensor& tensor, DType in) {
  return static_cast<std::uint64_t>(tensor.numel()) * kernels::element_size(in);
}

bool may_be_traced(const at::Tensor& tensor) {
  return tensor.key_set().has_any(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize}));
}

bool is_traced(PyObject* tensor) {
  if (!THPVariable_CheckExact(tensor)) return true;
  const at::Tensor& source = THPVariable_Unpack(tensor);
  return source.is_meta() || may_be_traced(source);
}

bool is_fake(PyObject* tensor) { return torch_private::is_fake_type(Py_TYPE(tensor)->tp_name); }

bool is_fake(const at::Tensor& tensor) {
  if (!tensor.defined() || !may_be_traced(tensor)) return false;
  if (tensor.key_set().has(c10::DispatchKey::Functionalize)) return true;
  const py::object object = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  return is_fake(object.ptr());
}

}  // namespace habana_mp
