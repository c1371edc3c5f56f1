#include "torch/tensor_cast.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_dtypes.h>

#include <string_view>
#include <type_traits>

#include "cast/cast_kernels.h"

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

// Whether the cast is arithmetic and at most a node for backward: a CPU tensor whose every key is
// of torch itself, no tangent to carry forward, no mode, tracer, transform or profiler that must
// see the op (D35).
bool is_plain(const at::Tensor& tensor) {
  static constexpr c10::DispatchKeySet kOwn(
      {c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradCPU,
       c10::DispatchKey::AutocastCPU});
  // Compared as bits: the difference of two key sets keeps the bits of their backends.
  return (tensor.key_set().raw_repr() & ~kOwn.raw_repr()) == 0 &&
         c10::impl::tls_local_dispatch_key_set().included_ == c10::default_included_set &&
         !tensor._fw_grad(/*level=*/0).defined() && !at::hasCallbacks();
}

// A node as an edge holds it: shared_ptr in torch 2.11, intrusive_ptr in 2.13.
template <typename Pointer, typename Node>
Pointer as_pointer(Node* node) {
  if constexpr (requires { Pointer::unsafe_steal_from_new(node); }) {
    return Pointer::unsafe_steal_from_new(node);
  } else {
    return Pointer(node, [](auto* last) { deleteNode(last); });
  }
}

// What torch's own autograd kernel of the cast does: the same node, so that all that knows it goes
// on.
void record_backward(const at::Tensor& source, at::Tensor& result) {
  using Pointer = decltype(torch::autograd::Edge::function);
  auto* node = new torch::autograd::generated::ToCopyBackward0;
  const Pointer pointer = as_pointer<Pointer>(node);
  node->set_next_edges(torch::autograd::collect_next_edges(source));
  node->self_options = source.options();
  torch::autograd::set_history(result, pointer);
}

// A share of a cast that is worth a thread: torch's own grain.
constexpr int64_t kGrain = 1 << 15;

// Elements lie in memory without gaps, so their order does not matter: the result has the strides
// of the source, those of dimensions of size 1 too, which say whether it is channels-last.
at::Tensor cast_dense(const at::Tensor& source, DType from, DType to) {
  at::Tensor result = at::detail::empty_strided_cpu(source.sizes(), source.strides(),
                                                    scalar_type(to), /*is_pinned=*/false);
  const cast::Kernel kernel = cast::kernel(from, to);
  const auto* read = static_cast<const char*>(source.const_data_ptr());
  auto* write = static_cast<char*>(result.mutable_data_ptr());
  const auto share = [=](int64_t begin, int64_t end) {
    kernel(read + begin * static_cast<int64_t>(cast::element_size(from)),
           write + begin * static_cast<int64_t>(cast::element_size(to)),
           static_cast<std::size_t>(end - begin));
  };
  if (source.numel() <= kGrain) {
    share(0, source.numel());
  } else {
    at::parallel_for(0, source.numel(), kGrain, share);
  }
  if (c10::GradMode::is_enabled() && source.requires_grad()) record_backward(source, result);
  return result;
}

at::Tensor cast_as_it_lies(const at::Tensor& source, DType from, DType to) {
  if (eligible(from) && is_plain(source) && source.is_non_overlapping_and_dense()) {
    return cast_dense(source, from, to);
  }
  return source.to(scalar_type(to));
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
  const DType from = dtype_of(source);
  if (source.numel() < kReleaseGilAbove) return THPVariable_Wrap(cast_as_it_lies(source, from, to));
  at::Tensor result;
  {
    pybind11::gil_scoped_release no_gil;
    result = cast_as_it_lies(source, from, to);
  }
  return THPVariable_Wrap(std::move(result));
  END_HANDLE_TH_ERRORS
}

bool is_fake(PyObject* tensor) {
  const std::string_view type = Py_TYPE(tensor)->tp_name;
  return type == "FakeTensor" || type == "FunctionalTensor";
}

bool is_traced(PyObject* tensor) {
  if (!THPVariable_CheckExact(tensor)) return true;
  const at::Tensor& source = THPVariable_Unpack(tensor);
  return source.is_meta() || source.key_set().has_any(c10::DispatchKeySet(
                                 {c10::DispatchKey::Python, c10::DispatchKey::Functionalize}));
}

}  // namespace habana_mp
