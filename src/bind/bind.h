// What module.cpp registers: one function a family, each in the file of its name.
#pragma once

#include <pybind11/pybind11.h>

namespace habana_mp {

void bind_autocast(pybind11::module_& module);
void bind_policy(pybind11::module_& module);
void bind_record(pybind11::module_& module);
void bind_report(pybind11::module_& module);
void bind_patched_op(pybind11::module_& module);
void bind_cast(pybind11::module_& module);
void bind_cache(pybind11::module_& module);
void bind_hpu_device(pybind11::module_& module);

}  // namespace habana_mp
