#include "base/python_error.h"

#include <pybind11/pybind11.h>

#include <exception>
#include <new>
#include <system_error>

namespace habana_mp {
namespace py = pybind11;

void set_python_error() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::system_error& error) {  // OSError picks its subclass by errno
    const py::tuple arguments = py::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace habana_mp
