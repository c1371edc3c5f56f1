// What module.cpp registers: one function a family, each in the file of its name.
#pragma once

#include <pybind11/pybind11.h>

namespace habana_mp {

void bind_autocast(pybind11::module_& module);
void bind_policy(pybind11::module_& module);
void bind_log(pybind11::module_& module);
void bind_report(pybind11::module_& module);
void bind_probe(pybind11::module_& module);
void bind_convert(pybind11::module_& module);
void bind_cast(pybind11::module_& module);
void bind_scope(pybind11::module_& module);
void bind_weights(pybind11::module_& module);
void bind_hpu(pybind11::module_& module);

}  // namespace habana_mp
