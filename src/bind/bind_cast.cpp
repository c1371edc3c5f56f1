// hmp.cast for Python: tensors by src/call, NumPy arrays by src/kernels. Tests choose the variant
// of the kernels here, too.
#include <ATen/MemoryOverlap.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind/module.h"
#include "call/cast_argument.h"
#include "call/weight_ops.h"
#include "cast/numbers.h"
#include "cast/parallel.h"
#include "cast/storage_check.h"
#include "weights/weight_cache.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

DType checked_dtype(int number) {
  const bool known = number >= 0 && static_cast<std::size_t>(number) < kDTypeCount;
  if (!known || !eligible(static_cast<DType>(number))) {
    throw std::invalid_argument(std::to_string(number) +
                                " is not the number of a dtype that can be cast");
  }
  return static_cast<DType>(number);
}

py::object cast_tensor_python(const py::object& tensor, int to) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("must be a tensor");
  PyObject* result = cast_by_hand(tensor.ptr(), checked_dtype(to));
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// Also of one memory under two storages, as torch.from_numpy makes them.
bool may_overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto *first = static_cast<const char*>(a.storage().data()),
             *second = static_cast<const char*>(b.storage().data());
  return first < second + b.storage().nbytes() && second < first + a.storage().nbytes();
}

// Whether the cast was done here. Our kernels do it for ordinary CPU tensors (cast/numbers.h) of
// two of our dtypes and the same sizes. Any other is left to Tensor.copy_.
bool cast_into(const py::object& x, const py::object& out) {
  if (!THPVariable_CheckExact(x.ptr()) || !THPVariable_CheckExact(out.ptr())) return false;
  const at::Tensor &source = THPVariable_Unpack(x.ptr()), &target = THPVariable_Unpack(out.ptr());
  const DType from = dtype_of(source), to = dtype_of(target);
  if (!source.is_cpu() || !target.is_cpu() || !is_ordinary(source) || !is_ordinary(target) ||
      !eligible(from) || !eligible(to) || from == to || source.sizes() != target.sizes() ||
      target.is_inference() || at::has_internal_overlap(target) != at::MemOverlap::No) {
    return false;
  }
  check_storage(source);  // clone() does not
  const py::gil_scoped_release no_gil;
  cast_numbers_into(may_overlap(source, target) ? source.clone() : source, target);
  target.unsafeGetTensorImpl()->bump_version();
  return true;
}

// In elements.
std::vector<std::int64_t> strides_of(const py::array& array, DType dtype) {
  const auto size = static_cast<py::ssize_t>(kernels::element_size(dtype));
  if (array.itemsize() != size)
    throw std::invalid_argument("the size of the elements is not that of the dtype");
  std::vector<std::int64_t> strides;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) {
    // Of a dimension of one element NumPy leaves any stride.
    const py::ssize_t stride = array.shape(i) > 1 ? array.strides(i) : 0;
    if (stride % size != 0)
      throw std::invalid_argument("a stride is not a multiple of the size of an element");
    strides.push_back(stride / size);
  }
  return strides;
}

// The two may not overlap. A fresh target lies in no cache and is not streamed. NumPy's dtypes are
// not looked at: it has none for bfloat16.
void cast_array(const py::array& source, int from_number, py::array& target, int to_number,
                bool fresh) {
  const DType from = checked_dtype(from_number), to = checked_dtype(to_number);
  const std::vector<std::int64_t> sizes(source.shape(), source.shape() + source.ndim());
  if (!std::equal(sizes.begin(), sizes.end(), target.shape(), target.shape() + target.ndim()))
    throw std::invalid_argument("the two shapes must be equal");
  const kernels::StridedCast strided(from, to, sizes, strides_of(source, from),
                                     strides_of(target, to));
  const void* read = source.data();
  void* write = target.mutable_data();
  const kernels::Stores stores =
      fresh ? kernels::Stores::Cached
            : kernels::stores_for(from, to, static_cast<std::size_t>(source.size()));
  const auto run = [&] { run_in_parallel(strided, read, write, stores); };
  if (source.size() < kReleaseGilAbove) {
    run();
  } else {
    const py::gil_scoped_release no_gil;
    run();
  }
}

std::vector<std::string> cast_variants() {
  std::vector<std::string> names;
  for (const kernels::Variant variant : kernels::available())
    names.push_back(kernels::variant_name(variant));
  return names;
}

void force_cast_variant(const std::string& name) {
  for (const kernels::Variant variant : kernels::available()) {
    if (name == kernels::variant_name(variant)) return kernels::force(variant);
  }
  throw std::invalid_argument("'" + name + "' is not a variant that this CPU runs");
}

}  // namespace

void bind_cast(py::module_& module) {
  module.def("cast_tensor", &cast_tensor_python, py::arg("tensor"), py::arg("to"));
  module.def("cast_into", &cast_into, py::arg("x"), py::arg("out"));
  module.def("cast_array", &cast_array, py::arg("source"), py::arg("from_dtype"), py::arg("target"),
             py::arg("to_dtype"), py::arg("fresh"));

  register_weight_ops();
  module.attr("WEIGHT_OPS") = py::tuple(py::cast(weight_op_names()));
  module.def("is_traced_parameter", [](const py::handle tensor) {
    return THPVariable_Check(tensor.ptr()) && is_traced_parameter(THPVariable_Unpack(tensor.ptr()));
  });
  module.def(
      "caches_size",
      [](std::int64_t numel, std::int64_t dims) { return WeightCache::accepts_size(numel, dims); },
      py::arg("numel"), py::arg("dims"), "Whether the weight cache takes weights of this size");

  module.def("cast_variants", &cast_variants, "From the plainest to the fastest.");
  module.def("cast_variant", [] { return kernels::variant_name(kernels::active()); });
  py::module_ testing = module.def_submodule("_testing", "For the tests of this package only.");
  testing.def("force_cast_variant", &force_cast_variant, py::arg("name"));
  testing.def("reset_cast_variant", &kernels::reset);
}

}  // namespace habana_mp
