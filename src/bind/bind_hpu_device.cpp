// The names of HPU as those of another device, for habana_mp/_hpu_device.py.
#include <c10/core/Device.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bind/bind.h"
#include "torch/hpu_device.h"

namespace py = pybind11;

namespace habana_mp {

void bind_hpu_device(py::module_& module) {
  module.def(
      "map_hpu",
      [](const std::string& device_type) { hpu_device::map_to(c10::Device(device_type).type()); },
      py::arg("device_type"));
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
