#include "cast/numbers.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/strides.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_dtypes.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cast_kernels.h"
#include "scope/regions.h"
#include "cast/node.h"
#include "watch/observer.h"
#include "cast/parallel.h"
#include "weights/weight_cache.h"

namespace habana_mp {
namespace {

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

// A share of a cast that is worth a thread: torch's own grain.
constexpr int64_t kGrain = 1 << 15;

void cast_dense(const char* source, char* target, DType from, DType to, int64_t count,
                kernels::Stores stores) {
  const kernels::Kernel kernel = kernels::kernel(from, to, stores);
  const auto share = [=](int64_t begin, int64_t end) {
    kernel(source + begin * static_cast<int64_t>(kernels::element_size(from)),
           target + begin * static_cast<int64_t>(kernels::element_size(to)),
           static_cast<std::size_t>(end - begin));
  };
  if (count <= kGrain) {
    share(0, count);
  } else {
    at::parallel_for(0, count, kGrain, share);
  }
}

void cast_any(const at::Tensor& source, const at::Tensor& target, DType from, DType to,
              kernels::Stores stores) {
  const auto span = [](at::IntArrayRef values) {
    return std::span<const std::int64_t>(values.data(), values.size());
  };
  const kernels::StridedCast strided(from, to, span(source.sizes()), span(source.strides()),
                                  span(target.strides()));
  run_in_parallel(strided, source.const_data_ptr(), target.mutable_data_ptr(), stores);
}

void cast_on_cpu(const at::Tensor& source, const at::Tensor& target) {
  const DType from = number_dtype(source);
  const DType to = number_dtype(target);
  auto stores = kernels::stores_for(from, to, static_cast<std::size_t>(source.numel()));
  if (stores == kernels::Stores::Streaming && is_fresh(target.storage().data_ptr())) {
    stores = kernels::Stores::Cached;
  }
  // Without gaps and in one order the elements are an array, of any number of dimensions.
  if (source.strides() == target.strides() && source.is_non_overlapping_and_dense()) {
    cast_dense(static_cast<const char*>(source.const_data_ptr()),
               static_cast<char*>(target.mutable_data_ptr()), from, to, source.numel(), stores);
  } else {
    cast_any(source, target, from, to, stores);
  }
}

// ATen casts what is elsewhere than in the CPU's memory, and what a profiler looks at.
bool by_aten(const at::Tensor& source) {
  return !source.is_cpu() || (at::hasCallbacks() && watch::profiled());
}

at::Tensor empty_on_cpu(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                        c10::Allocator* memory) {
  static constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CPU);
  return at::detail::empty_strided_generic(sizes, strides, memory, kKeys, type);
}

// Whether matrix multiplication, which sees a batch as one long matrix or as a row of matrices,
// would copy the tensor before it reads it (F.linear and matmul reshape their inputs).
// Matrices that are transposed, each in its place, are read as they are.
bool copied_by_matmul(const at::Tensor& tensor) {
  const int64_t dims = tensor.dim();
  if (dims < 3 || tensor.is_contiguous()) return false;
  at::DimVector sizes(tensor.sizes());
  at::DimVector strides(tensor.strides());
  std::swap(sizes[dims - 1], sizes[dims - 2]);
  std::swap(strides[dims - 1], strides[dims - 2]);
  return at::IntArrayRef(strides) != c10::contiguous_strides(sizes);
}

}  // namespace

bool is_ordinary(const at::Tensor& tensor) {
  // inference_mode takes a key out of what is included by default, a region of autocast adds one.
  static constexpr c10::DispatchKeySet kVaries({c10::DispatchKey::ADInplaceOrView, autocast::kKey});
  static constexpr c10::DispatchKeySet kOwn =
      c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::ADInplaceOrView}) |
      c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask) |
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset;
  // Compared as bits: the difference of two key sets keeps the bits of their backends.
  return (tensor.key_set().raw_repr() & ~kOwn.raw_repr()) == 0 &&
         (c10::impl::tls_local_dispatch_key_set().included_ | kVaries) ==
             (c10::default_included_set | kVaries) &&
         !tensor._fw_grad(/*level=*/0).defined();
}

void cast_numbers_into(const at::Tensor& source, const at::Tensor& target) {
  if (!by_aten(source)) return cast_on_cpu(source, target);
  const at::AutoDispatchBelowADInplaceOrView guard;
  target.copy_(source);
}

at::Tensor cast_numbers(const at::Tensor& source, DType to, at::IntArrayRef strides,
                        Lifetime lifetime) {
  const at::ScalarType type = scalar_type(to);
  if (by_aten(source)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (strides.empty()) return source.to(type);
    return at::empty_strided(source.sizes(), strides, source.options().dtype(type)).copy_(source);
  }
  std::vector<int64_t> dense;
  if (strides.empty() && source.is_non_overlapping_and_dense()) {
    // Those of dimensions of size 1 too, which say whether the tensor is channels-last.
    strides = source.strides();
  } else if (strides.empty()) {
    dense = at::infer_dense_strides(source.sizes(), source.strides());
    strides = dense;
  }
  at::Tensor result = empty_on_cpu(source.sizes(), strides, type, result_memory(lifetime));
  cast_on_cpu(source, result);
  return result;
}

namespace {

at::Tensor cast_in(const at::Tensor& source, DType to, at::IntArrayRef strides, Lifetime lifetime) {
  const DType from = dtype_of(source);
  if (!eligible(from) || from == to || !is_ordinary(source)) return source.to(scalar_type(to));
  at::Tensor result = cast_numbers(source, to, strides, lifetime);
  if (c10::GradMode::is_enabled() && source.requires_grad()) record_backward(source, result);
  return result;
}

}  // namespace

at::Tensor cast_to(const at::Tensor& source, DType to, How how) {
  if (how.cached && WeightCache::accepts(source, to)) {
    return weight_cache().cast(source, to, how.served);
  }
  const bool recorded = c10::GradMode::is_enabled() && source.requires_grad();
  const Lifetime lifetime = recorded ? Lifetime::Graph : Lifetime::Call;
  if (how.contiguous && is_ordinary(source) && copied_by_matmul(source)) {
    return cast_in(source, to, c10::contiguous_strides(source.sizes()), lifetime);
  }
  return cast_in(source, to, {}, lifetime);
}

at::Tensor cast_gradient(const at::Tensor& gradient, DType to, at::IntArrayRef strides) {
  return cast_in(gradient, to, strides, strides.empty() ? Lifetime::Graph : Lifetime::Step);
}

PyObject* cast_tensor(PyObject* tensor, DType to, How how) {
  const at::ScalarType dtype = scalar_type(to);
  if (!THPVariable_CheckExact(tensor)) {
    PyObject* args[] = {nullptr, tensor, reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype))};
    return PyObject_Vectorcall(original_to(), args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                               nullptr);
  }
  HANDLE_TH_ERRORS
  const at::Tensor& source = THPVariable_Unpack(tensor);
  if (source.numel() < kReleaseGilAbove) return THPVariable_Wrap(cast_to(source, to, how));
  at::Tensor result;
  {
    pybind11::gil_scoped_release no_gil;
    result = cast_to(source, to, how);
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
