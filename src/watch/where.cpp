#include "watch/where.h"

#include <frameobject.h>
#include <pybind11/stl.h>

#include "base/process_wide.h"
#include "report/site.h"

namespace habana_mp::watch {
namespace {

namespace py = pybind11;

struct Functions {
  py::function where, source, path;
  py::object call;
  std::vector<std::string> own;
};

Functions& functions() { return process_wide<Functions>(); }

bool is_user(const PyCodeObject* code) {
  Py_ssize_t size = 0;
  const char* file = PyUnicode_AsUTF8AndSize(code->co_filename, &size);
  if (file == nullptr) PyErr_Clear();  // a name that is no UTF-8 is none of ours
  const std::string_view name(file == nullptr ? "" : file, static_cast<std::size_t>(size));
  return std::ranges::none_of(functions().own,
                              [&](const std::string& own) { return name.starts_with(own); });
}

// Where in its code a frame is.
std::uint64_t step_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return static_cast<std::uint64_t>(PyFrame_GetLasti(frame));
#else
  return static_cast<std::uint64_t>(frame->f_lasti);
#endif
}

}  // namespace

void set_where(py::function where, py::function source, py::function path, py::object call,
               std::vector<std::string> own) {
  functions() = {std::move(where), std::move(source), std::move(path), std::move(call),
                 std::move(own)};
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

std::uint64_t place_here() {
  const py::gil_scoped_acquire gil;
  const Functions& known = functions();
  std::uint64_t place = 0;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(at)));
    if (code.is(known.call)) break;
    place = report::mixed(report::mixed(place + reinterpret_cast<std::uintptr_t>(code.ptr())) +
                          step_of(at));
    if (is_user(reinterpret_cast<PyCodeObject*>(code.ptr()))) break;
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
  }
  return place;
}

std::string path_of(const py::list& modules) {
  return functions().path(modules).cast<std::string>();
}

}  // namespace habana_mp::watch
