// The weight cache, for Python.
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <string_view>

#include "bind/bind.h"
#include "call/packed_call.h"
#include "cast/node.h"
#include "cast/result_memory.h"
#include "weights/alias_watch.h"
#include "weights/op_watch.h"
#include "weights/weight_cache.h"
#include "weights/weight_memory.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

py::dict info() {
  const WeightCache::Info info = weight_cache().info();
  py::dict ended;
  for (std::size_t i = 0; i < kEndedNames.size(); ++i) {
    if (info.ended[i] > 0) ended[kEndedNames[i]] = info.ended[i];
  }
  return py::dict(py::arg("entries") = info.entries, py::arg("packed") = info.packed,
                  py::arg("bytes") = info.bytes, py::arg("limit") = info.limit,
                  py::arg("hits") = info.hits, py::arg("misses") = info.misses,
                  py::arg("refreshed") = info.refreshed, py::arg("invalidated") = ended);
}

py::list choices_made() {
  py::list rows;
  for (const Choice& choice : choices()) {
    py::dict taken;
    for (std::size_t i = 0; i < kWays; ++i) {
      if (choice.microseconds[i] > 0) taken[kWayNames[i]] = choice.microseconds[i];
    }
    rows.append(py::dict(py::arg("op") = choice.op, py::arg("weight") = choice.weight,
                         py::arg("input") = choice.input, py::arg("dtype") = dtype_name(choice.to),
                         py::arg("threads") = choice.threads,
                         py::arg("by") = kWayNames[static_cast<std::size_t>(choice.by)],
                         py::arg("microseconds") = taken));
  }
  return rows;
}

}  // namespace

void bind_weights(py::module_& module) {
  register_copy_backwards();
  const py::object slice =
      py::module_::import("torch").attr("UntypedStorage")(2)[py::slice(0, 1, 1)];
  learn_slices(*THPStorage_Unpack(slice.ptr()).unsafeGetStorageImpl());

  py::list packings;
  for (const std::string_view name : kPackingNames)
    packings.append(py::str(name.data(), name.size()));
  module.attr("PACKINGS") = py::tuple(packings);
  module.def("set_packing", [](std::string_view name) {
    const auto found = std::ranges::find(kPackingNames, name);
    if (found == kPackingNames.end()) throw py::value_error("no such packing");
    set_packing(static_cast<Packing>(found - kPackingNames.begin()));
  });
  module.def("cache_info", &info);
  module.def("cache_choices", &choices_made);
  module.def("clear_cache", [] {
    weight_cache().clear();
    release_result_memory();
  });
  module.def("leave_cache_writes_behind", [] { weight_cache().leave_writes_behind(); });
  module.def("set_cache_limit", [](std::size_t bytes) {
    weight_cache().set_limit(bytes);
    bytes == 0 ? unwatch_ops() : watch_ops();
  });
  module.def("end_cached_after_step", [] { weight_cache().end_all(Ended::Optimizer); });
  module.def("end_cached_alias", [](const py::iterable& tensors, bool exported) {
    for (const py::handle tensor : tensors) {
      if (THPVariable_Check(tensor.ptr())) {
        weight_cache().end_alias(THPVariable_Unpack(tensor.ptr()), exported);
      }
    }
  });
  module.def("weights_held_elsewhere", [](const py::list& objects) {
    py::list found;
    for (const py::handle object : objects) {
      // By its type: isinstance would ask proxies what they stand for.
      const bool is_tensor = PyType_IsSubtype(Py_TYPE(object.ptr()),
                                              reinterpret_cast<PyTypeObject*>(THPVariableClass));
      if (is_tensor && held_elsewhere(THPVariable_Unpack(object.ptr()))) {
        found.append(object);
      }
    }
    return found;
  });
  module.def("alias_watch", [](const py::object& original, int kind) {
    PyObject* watch = alias_watch(original.ptr(), static_cast<AliasKind>(kind));
    if (watch == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(watch);
  });
}

}  // namespace habana_mp
