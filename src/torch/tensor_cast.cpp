#include "torch/tensor_cast.h"

#include <ATen/ATen.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_dtypes.h>

namespace habana_mp {
namespace {

// Below this a cast is over sooner than other threads could take the GIL.
constexpr int64_t kReleaseGilAbove = 1 << 16;

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return at::kHalf;
    case DType::BFloat16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

// Tensor.to as torch defines it, whatever a policy has patched.
PyObject* original_to() {
  static PyObject* to =
      PyObject_GetAttrString(py::module_::import("torch._C").attr("TensorBase").ptr(), "to");
  return to;
}

}  // namespace

PyObject* cast_tensor(PyObject* tensor, DType to) {
  const at::ScalarType dtype = scalar_type(to);
  if (!THPVariable_CheckExact(tensor)) {
    PyObject* args[] = {nullptr, tensor, reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype))};
    return PyObject_Vectorcall(original_to(), args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                               nullptr);
  }
  HANDLE_TH_ERRORS
  const at::Tensor& source = THPVariable_Unpack(tensor);
  if (source.numel() < kReleaseGilAbove) return THPVariable_Wrap(source.to(dtype));
  at::Tensor result;
  {
    pybind11::gil_scoped_release no_gil;
    result = source.to(dtype);
  }
  return THPVariable_Wrap(std::move(result));
  END_HANDLE_TH_ERRORS
}

bool is_traced(PyObject* tensor) {
  if (!THPVariable_CheckExact(tensor)) return true;
  const at::Tensor& source = THPVariable_Unpack(tensor);
  return source.is_meta() || source.key_set().has_any(c10::DispatchKeySet(
                                 {c10::DispatchKey::Python, c10::DispatchKey::Functionalize}));
}

}  // namespace habana_mp
