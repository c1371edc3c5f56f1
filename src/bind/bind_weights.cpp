// The weight cache, for Python.
#include <torch/csrc/Storage.h>

#include "bind/bind.h"
#include "cast/node.h"
#include "cast/result_memory.h"
#include "weights/alias_watch.h"
#include "weights/collective_watch.h"
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
  return py::dict(py::arg("entries") = info.entries, py::arg("bytes") = info.bytes,
                  py::arg("limit") = info.limit, py::arg("hits") = info.hits,
                  py::arg("misses") = info.misses, py::arg("refreshed") = info.refreshed,
                  py::arg("invalidated") = ended);
}

}  // namespace

void bind_weights(py::module_& module) {
  register_copy_backwards();
  const py::object slice =
      py::module_::import("torch").attr("UntypedStorage")(2)[py::slice(0, 1, 1)];
  learn_slices(*THPStorage_Unpack(slice.ptr()).unsafeGetStorageImpl());

  module.def("cache_info", &info);
  module.def("clear_cache", [] {
    weight_cache().clear();
    release_result_memory();
  });
  module.def("set_cache_limit", [](std::size_t bytes) {
    static std::unique_ptr<torch::Library> watch;
    weight_cache().set_limit(bytes);
    if (bytes == 0) {
      watch.reset();
    } else if (watch == nullptr) {
      watch = watch_collectives();
    }
  });
  module.def("end_cached_after_step", [] { weight_cache().end_all(Ended::Optimizer); });
  module.def("alias_watch", [](const py::object& original, int kind) {
    PyObject* watch = alias_watch(original.ptr(), static_cast<AliasKind>(kind));
    if (watch == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(watch);
  });
}

}  // namespace habana_mp
