// The weight cache, for Python.
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string_view>

#include "bind/module.h"
#include "call/packed_call.h"
#include "cast/node.h"
#include "cast/result_memory.h"
#include "weights/alias_watch.h"
#include "weights/offloaded_memory.h"
#include "weights/op_watch.h"
#include "weights/weight.h"
#include "weights/weight_cache.h"

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
      const auto ns = static_cast<double>(choice.measured.ns[i]);
      if (ns > 0) taken[kWayNames[i]] = ns / 1e3;
    }
    rows.append(py::dict(py::arg("op") = choice.op, py::arg("weight") = choice.weight,
                         py::arg("input") = choice.input, py::arg("dtype") = dtype_name(choice.to),
                         py::arg("threads") = choice.threads,
                         py::arg("by") = kWayNames[static_cast<std::size_t>(choice.measured.by)],
                         py::arg("microseconds") = taken));
  }
  return rows;
}

c10::StorageImpl& storage_of(const py::handle& weight) {
  return *THPVariable_Unpack(weight.ptr()).storage().unsafeGetStorageImpl();
}

// What offload() may do with a parameter. Below some pages, the samples that every use reads are
// most of a weight.
constexpr std::int64_t kSmallestOffloaded = std::int64_t{1} << 16;

std::string_view offload_state(const py::handle& parameter) {
  const at::Tensor& weight = THPVariable_Unpack(parameter.ptr());
  const bool full = weight.scalar_type() == at::kFloat;  // the copy of a low weight is larger
  if (!full || !is_weight(weight) || weight.numel() < kSmallestOffloaded) return "other";
  if (!weight.is_cpu()) return "device";
  const c10::StorageImpl& storage = *weight.storage().unsafeGetStorageImpl();
  if (is_offloaded(storage)) return has_written_pages(storage) ? "written" : "offloaded";
  if (storage.data_ptr().get_deleter() == slices_deleter) return "mapped";
  if (const auto why = weight_cache().why_never_kept(weight)) {
    return kEndedNames[static_cast<std::size_t>(*why)];
  }
  // What a device reads by itself keeps its old pages.
  return weight.is_pinned() ? "foreign" : "ready";
}

void bind_offloading(py::module_& module) {
  module.def("offload_state", &offload_state);
  module.def("offloaded_bytes",
             [](const py::handle& weight) { return pages_of(storage_of(weight)).size(); });
  module.def("write_pages", [](const py::handle& weight, int file, std::size_t offset) {
    const c10::StorageImpl& storage = storage_of(weight);
    const py::gil_scoped_release no_gil;
    write_pages(storage, file, offset);
  });
  module.def("map_pages", [](const py::handle& weight, int file, std::size_t offset) {
    map_pages(THPVariable_Unpack(weight.ptr()), file, offset);
  });
  module.def("drop_pages", [](const py::handle& weight) {
    drop_unsampled_pages(THPVariable_Unpack(weight.ptr()));
  });
  module.def("restore_pages", [](const py::handle& parameter) {
    const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
    if (tensor.has_storage()) restore_pages(*tensor.storage().unsafeGetStorageImpl());
  });
  module.def("restore_all_pages", &restore_all_pages);
  module.def("lies_in_memory", &lies_in_memory);
}

}  // namespace

void bind_weights(py::module_& module) {
  register_copy_backwards();
  bind_offloading(module);
  const py::object slice =
      py::module_::import("torch").attr("UntypedStorage")(2)[py::slice(0, 1, 1)];
  learn_slices(*THPStorage_Unpack(slice.ptr()).unsafeGetStorageImpl());

  module.def("set_packing", &set_packing);
  module.def_submodule("_testing").def("measure_choices", &measure_choices, py::arg("on"));
  module.def("cache_info", &info);
  module.def("cache_choices", &choices_made);
  module.def("clear_cache", [] {
    weight_cache().clear();
    release_result_memory();
  });
  module.def("leave_others_of_cache_behind", [] { weight_cache().leave_others_behind(); });
  module.def("set_cache_limit", [](std::size_t bytes) {
    weight_cache().set_limit(bytes);
    bytes == 0 ? unwatch_ops() : watch_ops();
  });
  module.def("end_cached_after_replay", [] { weight_cache().end_all(Ended::Optimizer); });
  module.def("end_cached_after_step", [](const std::vector<at::Tensor>& parameters) {
    weight_cache().end_step(parameters);
  });
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
      if (!is_tensor) continue;
      const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
      if (is_weight(tensor) && is_held_elsewhere(tensor, known_holds(tensor))) found.append(object);
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
