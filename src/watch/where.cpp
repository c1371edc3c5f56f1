#include "watch/where.h"

#include <pybind11/stl.h>

#include "base/process_wide.h"

namespace habana_mp::watch {
namespace {

namespace py = pybind11;

struct Functions {
  py::function where, source, path;
};

Functions& functions() { return process_wide<Functions>(); }

}  // namespace

void set_where(py::function where, py::function source, py::function path) {
  functions() = {std::move(where), std::move(source), std::move(path)};
}

std::pair<std::string, std::string> where() {
  return functions().where().cast<std::pair<std::string, std::string>>();
}

std::string source_here() {
  try {
    return functions().source().cast<std::string>();
  } catch (...) {
    PyErr_Clear();
    return {};
  }
}

std::string path_of(const py::list& modules) {
  return functions().path(modules).cast<std::string>();
}

}  // namespace habana_mp::watch
