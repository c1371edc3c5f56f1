// The names of HPU as those of another device, for habana_mp/_hpu/mapping.py.
#include <c10/core/Device.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/module.h"
#include "hpu/hpu_device.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

// Tensor.hpu, which as a function of Python would take half as long again as Tensor.to.
PyObject* there = nullptr;         // the device
PyObject* with_options = nullptr;  // the function for calls that name a device or an option

PyObject* move_to_hpu(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (count != 0 || names != nullptr) {
    std::vector<PyObject*> all{self};
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    all.insert(all.end(), args, args + count + named);
    return PyObject_Vectorcall(with_options, all.data(), static_cast<std::size_t>(count + 1),
                               names);
  }
  static PyObject* const to = PyUnicode_InternFromString("to");
  PyObject* arguments[] = {self, there};
  return PyObject_VectorcallMethod(to, arguments, 2, nullptr);
}

py::object hpu_method(const py::type& tensor, const py::object& device, const py::function& other) {
  static PyMethodDef method = {
      "hpu", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(move_to_hpu)),
      METH_FASTCALL | METH_KEYWORDS,
      "hpu($self, device=None, non_blocking=False, memory_format=torch.preserve_format)\n--\n\n"
      "The tensor on the device that \"hpu\" stands for."};
  Py_XDECREF(std::exchange(there, py::object(device).release().ptr()));
  Py_XDECREF(std::exchange(with_options, py::object(other).release().ptr()));
  return py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(tensor.ptr()), &method));
}

}  // namespace

void bind_hpu(py::module_& module) {
  module.def(
      "map_hpu",
      [](const std::string& device_type) { hpu_device::map_to(c10::Device(device_type).type()); },
      py::arg("device_type"));
  module.def("hpu_method", &hpu_method, py::arg("tensor"), py::arg("device"), py::arg("other"),
             "A method of Tensor: to the device, or other(...) where it is called with arguments");
  module.def("unmap_hpu", &hpu_device::unmap);
  module.def(
      "hpu_mapped_to",
      []() -> std::optional<std::string> {
        const auto type = hpu_device::mapped_to();
        return type ? std::optional(c10::DeviceTypeName(*type, /*lower_case=*/true)) : std::nullopt;
      },
      "The device type that hpu stands for, None while torch reads it as ever");
}

}  // namespace habana_mp
