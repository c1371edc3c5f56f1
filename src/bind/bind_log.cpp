// The cast log in Python: opening it, asking for its level, and writing a text of
// habana_mp/_watch/log.py.
#include <pybind11/stl.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "bind/module.h"
#include "report/cast_log.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

// A repr or a path may hold what UTF-8 cannot: the line is written all the same.
py::str to_str(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

void open_log(int level, const std::string& path, py::object writer, py::object on_failure,
              std::vector<std::string> ops, std::vector<std::string> modules, std::uint64_t first) {
  try {
    report::open(
        static_cast<report::Level>(level), path, {std::move(ops), std::move(modules), first},
        [writer = std::move(writer)](std::string_view text) {
          return writer(to_str(text)).cast<std::string>();
        },
        [on_failure = std::move(on_failure)](const std::string& why) { on_failure(to_str(why)); });
  } catch (const std::system_error& error) {
    // As Python's own open(): the subclass of OSError that fits errno, with the path.
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw py::error_already_set();
  }
}

}  // namespace

void bind_log(py::module_& module) {
  module.def("open_log", &open_log, py::arg("level"), py::arg("path"), py::arg("writer"),
             py::arg("on_failure"), py::arg("ops") = py::tuple(), py::arg("modules") = py::tuple(),
             py::arg("first") = 0);
  module.def("close_log", &report::close);
  module.def("log_level", [] { return static_cast<int>(report::level()); });
  // Asked for each region of autocast: os.environ takes a microsecond to say no.
  module.def(
      "environment_has", [](const char* name) { return std::getenv(name) != nullptr; },
      py::arg("name"));
  module.def("write_log_text", &report::write_text, py::arg("text"));
}

}  // namespace habana_mp
