#include "call/cast_argument.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_dtypes.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "cast/node.h"
#include "cast/numbers.h"
#include "cast/parallel.h"
#include "cast/tensors.h"
#include "listen/child_casts.h"
#include "listen/watched_call.h"
#include "weights/weight_cache.h"

namespace habana_mp {
namespace {

// Tensor.to as torch defines it, whatever a policy has patched.
PyObject* original_to() {
  static PyObject* to =
      PyObject_GetAttrString(py::module_::import("torch._C").attr("TensorBase").ptr(), "to");
  return to;
}

// Whether the last two dimensions are transposed, and otherwise all lies in a row.
template <typename Number>
bool are_matrices_in_a_row(c10::ArrayRef<Number> sizes, c10::ArrayRef<Number> strides) {
  const std::size_t last = sizes.size() - 1;
  Number stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const std::size_t dim = i == last ? i - 1 : i == last - 1 ? i + 1 : i;
    if constexpr (std::is_same_v<Number, c10::SymInt>) {
      if (!TORCH_GUARD_OR_FALSE(strides[dim].sym_eq(stride))) return false;
      stride *= sizes[dim].max(1);
    } else {
      if (strides[dim] != stride) return false;
      stride *= std::max<Number>(sizes[dim], 1);
    }
  }
  return true;
}

// `was_cached`, where given, is set to whether the weight cache had it.
at::Tensor cast_one(const at::Tensor& source, DType to, How how, bool* was_cached,
                    WeightCache::Caller caller = WeightCache::Caller::Dispatcher) {
  if (!is_ordinary(source)) {
    if (how.contiguous && copied_when_traced(source)) {
      return source.to(scalar_type(to), false, false, at::MemoryFormat::Contiguous);
    }
    return source.to(scalar_type(to));
  }
  if (how.cached && WeightCache::accepts(source, to)) {
    return weight_cache().cast(source, to, caller, was_cached);
  }
  const Lifetime lifetime = records_graph(source) ? Lifetime::Graph : Lifetime::Call;
  if (how.contiguous && copied_by_matmul(source)) {
    return cast_ordinary(source, to, c10::contiguous_strides(source.sizes()), lifetime);
  }
  return cast_ordinary(source, to, {}, lifetime);
}

PyObject* cast_one(PyObject* tensor, DType to, How how, bool* was_cached) {
  if (!THPVariable_CheckExact(tensor)) {
    HANDLE_TH_ERRORS
    PyObject* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(scalar_type(to)));
    const bool contiguous = how.contiguous && copied_when_traced(THPVariable_Unpack(tensor));
    static PyObject* const names = Py_BuildValue("(s)", "memory_format");
    PyObject* format = torch::utils::getTHPMemoryFormat(at::MemoryFormat::Contiguous);
    PyObject* args[] = {nullptr, tensor, dtype, format};
    return PyObject_Vectorcall(original_to(), args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                               contiguous ? names : nullptr);
    END_HANDLE_TH_ERRORS
  }
  constexpr auto kCaller = WeightCache::Caller::Python;
  HANDLE_TH_ERRORS
  const at::Tensor& source = THPVariable_Unpack(tensor);
  if (!has_known_sizes(source) || source.numel() < kReleaseGilAbove) {
    return THPVariable_Wrap(cast_one(source, to, how, was_cached, kCaller));
  }
  at::Tensor result;
  {
    pybind11::gil_scoped_release no_gil;
    result = cast_one(source, to, how, was_cached, kCaller);
  }
  return THPVariable_Wrap(std::move(result));
  END_HANDLE_TH_ERRORS
}

const at::Tensor& tensor_of(const at::Tensor& tensor) { return tensor; }
const at::Tensor& tensor_of(PyObject* tensor) { return THPVariable_Unpack(tensor); }
const at::Tensor& result_of(const at::Tensor& tensor) { return tensor; }
at::Tensor result_of(PyObject* tensor) {
  return tensor == nullptr ? at::Tensor() : THPVariable_Unpack(tensor);
}

template <typename Source>
auto cast_watched(const Source& source, DType to, How how) {
  listen::Observer* observer = listen::observer_of_call();
  if (observer == nullptr) return cast_one(source, to, how, nullptr);
  bool was_cached = false;
  const DType from = dtype_of(tensor_of(source));
  const std::uint64_t start = now_ns();
  auto result = cast_one(source, to, how, &was_cached);
  const std::uint64_t ns = now_ns() - start;
  observer->casts(tensor_of(source), result_of(result),
                  {from, to, was_cached, bytes_of(tensor_of(source), to), start, ns});
  return result;
}

}  // namespace

bool copied_by_matmul(const at::Tensor& tensor) {
  if (tensor.dim() < 3 || tensor.is_contiguous()) return false;
  return !are_matrices_in_a_row(tensor.sizes(), tensor.strides());
}

bool copied_when_traced(const at::Tensor& tensor) {
  if (tensor.dim() < 3 || tensor.layout() != at::kStrided || tensor.is_nested() ||
      tensor.is_contiguous_or_false()) {
    return false;
  }
  return !are_matrices_in_a_row(tensor.sym_sizes(), tensor.sym_strides());
}

at::Tensor cast_argument(const at::Tensor& source, DType to, How how) {
  listen::count_in_parent();
  return listen::anyone_hears(listen::Hears::Calls) ? cast_watched(source, to, how)
                                                    : cast_one(source, to, how, nullptr);
}

at::Tensor in_dtype(const at::Tensor& tensor, DType to, bool contiguous) {
  if (!tensor.defined() || number_dtype(tensor) == to) return tensor;
  return cast_argument(tensor, to, {.cached = true, .contiguous = contiguous});
}

PyObject* cast_argument(PyObject* tensor, DType to, How how) {
  listen::count_in_parent();
  return listen::anyone_hears(listen::Hears::Calls) ? cast_watched(tensor, to, how)
                                                    : cast_one(tensor, to, how, nullptr);
}

PyObject* cast_by_hand(PyObject* tensor, DType to) {
  const DType from = dtype_of(THPVariable_Unpack(tensor));
  if (THPVariable_CheckExact(tensor) && (!eligible(from) || from == to)) {
    HANDLE_TH_ERRORS
    return THPVariable_Wrap(THPVariable_Unpack(tensor).to(scalar_type(to)));
    END_HANDLE_TH_ERRORS
  }
  return cast_one(tensor, to, {}, nullptr);
}

void LentCopies::add(const at::Tensor& cast) {
  // A cast made for this call alone shares its memory with nobody, and requires no grad where grad
  // mode is off.
  if (cast.has_storage() &&
      (cast.storage().use_count() > 1 || (cast.requires_grad() && !c10::GradMode::is_enabled()))) {
    copies_.push_back(cast);
  }
}

bool LentCopies::include(const at::Tensor& result) const {
  if (!result.defined() || !result.has_storage()) return false;
  return std::any_of(copies_.begin(), copies_.end(), [&](const at::Tensor& copy) {
    return result.storage().is_alias_of(copy.storage());
  });
}

}  // namespace habana_mp
