// Regions of hmp.autocast for Python: made of a policy, entered and left, and passed to other
// threads.
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "autocast/catalogue.h"
#include "autocast/rules.h"
#include "base/run_in_c.h"
#include "bind/module.h"
#include "call/errors.h"
#include "scope/codes.h"
#include "scope/compound.h"
#include "scope/regions.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

using autocast::Region;

at::ScalarType scalar_type_of(const py::object& dtype) {
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("must be a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

// autocast::kDeviceCount for a device type that autocast is not for.
std::size_t device_index(const std::string& type) {
  const c10::DeviceType device = c10::Device(type).type();
  const auto* found = std::find(autocast::kDevices.begin(), autocast::kDevices.end(), device);
  return static_cast<std::size_t>(found - autocast::kDevices.begin());
}

using Row = std::tuple<std::string, py::object, std::shared_ptr<autocast::Rules>>;

Region make_region(const std::vector<Row>& rows, bool cached, bool in_place_of_convert,
                   bool suspends) {
  Region region;
  for (const auto& [type, dtype, rules] : rows) {
    if (rules) autocast::register_kernels(*rules);
    region.settings.push_back(
        {device_index(type), rules != nullptr, scalar_type_of(dtype), {rules, cached, suspends}});
  }
  if (in_place_of_convert) region.in_place_of_convert = true;
  return region;
}

const Region& region_of(PyObject* context) {
  static PyObject* name = PyUnicode_InternFromString("_region");
  const auto region = py::reinterpret_steal<py::object>(PyObject_GetAttr(context, name));
  if (!region) throw py::error_already_set();
  return region.cast<const Region&>();
}

PyObject* enter_context(PyObject* const* args, Py_ssize_t) {
  PyObject* context = args[0];
  autocast::enter(region_of(context), context);
  return Py_NewRef(context);
}

// (context, type of an exception, exception, traceback)
PyObject* leave_context(PyObject* const* args, Py_ssize_t count) {
  const bool failed = count > 2 && PyObject_IsInstance(args[2], PyExc_RuntimeError) == 1;
  if (const auto policy = failed ? autocast::policy_here() : nullptr)
    add_note_at_end(py::reinterpret_borrow<py::object>(args[2]), policy);
  autocast::leave(args[0]);
  Py_RETURN_NONE;
}

// The scope of ours in force on this thread for a device type, null where there is none.
const autocast::Scope* ours_here(const std::string& type) {
  const std::size_t device = device_index(type);
  if (device == autocast::kDeviceCount) return nullptr;
  const auto here = autocast::ruling_here(device, autocast::excluded_here());
  return here.ruler == autocast::Ruler::Ours ? here.scope : nullptr;
}

py::tuple ruled_here() {
  py::list found;
  const c10::DispatchKeySet excluded = autocast::excluded_here();
  for (std::size_t i = autocast::kDeviceCount; i-- > 0;) {
    const auto here = autocast::ruling_here(i, excluded);
    const autocast::Scope* scope =
        here.ruler == autocast::Ruler::Ours ? here.scope : autocast::suspended_here(i);
    if (scope == nullptr) continue;
    const c10::DeviceType type = autocast::kDevices[i];
    const py::handle dtype(
        reinterpret_cast<PyObject*>(torch::getTHPDtype(at::autocast::get_autocast_dtype(type))));
    found.append(py::make_tuple(c10::DeviceTypeName(type, true), dtype, scope->cached));
  }
  return py::tuple(found);
}

}  // namespace

void bind_autocast(py::module_& module) {
  autocast::set_rules_maker([](std::shared_ptr<const Policy> policy) {
    auto rules = autocast::compile(std::move(policy), /*of_conversion=*/true);
    autocast::register_kernels(*rules);
    return rules;
  });
  py::class_<autocast::Rules, std::shared_ptr<autocast::Rules>>(module, "AutocastRules");
  // In a with block no signal comes between its beginning or its end and what these do.
  py::class_<Region>(module, "AutocastRegion")
      .def("__enter__",
           [](py::object self) {
             autocast::enter(self.cast<const Region&>(), self.ptr());
             return self;
           })
      .def("__exit__", [](const py::object& self, const py::args&) { autocast::leave(self.ptr()); })
      .def_property_readonly("policies", [](const Region& region) {
        std::vector<std::shared_ptr<Policy>> found;
        for (const autocast::Setting& setting : region.settings) {
          if (setting.scope.rules)
            found.push_back(std::const_pointer_cast<Policy>(setting.scope.rules->policy));
        }
        return found;
      });

  module.def("autocast_rules", [](const std::shared_ptr<Policy>& policy) {
    return std::const_pointer_cast<autocast::Rules>(
        autocast::compile(policy, /*of_conversion=*/false));
  });
  module.def("autocast_region", &make_region, py::arg("rows"), py::arg("cached"),
             py::arg("in_place_of_convert") = false, py::arg("suspends") = false,
             "Rows of (device type, dtype, rules); without rules autocast is off there inside, and "
             "with `suspends` until a module inside has a policy.");
  module.def(
      "enter_autocast",
      [](const Region& region, const py::object& owner) { autocast::enter(region, owner.ptr()); },
      py::arg("region"), py::arg("owner"));
  module.def(
      "leave_autocast", [](const py::object& owner) { autocast::leave(owner.ptr()); },
      py::arg("owner"));
  module.def("autocast_depth", &autocast::depth);
  module.def("leave_autocast_to", &autocast::leave_to, py::arg("depth"));
  module.def("current_autocast", &autocast::current);
  module.def("compound_region", &autocast::compound_region);
  module.def("in_region", &autocast::in_region);
  module.def("in_region_of_int8", &autocast::in_region_of_int8);
  module.def(
      "autocast_policy",
      [](const std::string& type) {
        const autocast::Scope* scope = ours_here(type);
        return scope == nullptr ? nullptr : std::const_pointer_cast<Policy>(scope->rules->policy);
      },
      py::arg("device_type"),
      "The policy of the region in force on this thread, None where there is none of ours");
  module.def("autocast_ruled", &ruled_here,
             "For each device type that a region of ours is in force for on this thread, or would "
             "be but for a module that runs in float32: its name, its low dtype, and whether the "
             "weight cache keeps casts");
  module.def("dispatched_ops", [] {
    std::vector<std::string> names;
    for (const autocast::Op& op : autocast::catalogue().ops) names.push_back(op.name);
    return names;
  });
  module.def("aten_tensor_arguments", &autocast::aten_tensor_arguments);
  module.attr("TRACED_CASTS") = autocast::kTracedCasts;
  module.attr("AUTOCAST_KEY") = c10::toString(autocast::kKey);
  module.def("run_autocast_in_c", [](const py::function& enter, const py::function& leave) {
    run_in_c<enter_context>(enter);
    run_in_c<leave_context>(leave);
  });
}

}  // namespace habana_mp
