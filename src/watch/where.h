// Where a call comes from: what only Python frames can answer. habana_mp/_watch/where.py registers
// the three functions when it is imported.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

namespace habana_mp::watch {

void set_where(pybind11::function where, pybind11::function source, pybind11::function path);

// The module whose forward runs, and the user's line. With the GIL.
std::pair<std::string, std::string> where();
// The user's line alone, "" where Python raised.
std::string source_here();
// The path from the first to the last of some modules, each called within the one before.
std::string path_of(const pybind11::list& modules);

}  // namespace habana_mp::watch
