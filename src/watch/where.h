// Where a call comes from: what only Python frames can answer. habana_mp/_watch/where.py registers
// the three functions when it is imported.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace habana_mp::watch {

// `call`: the code of a module's call; `own`: how the files begin that are not the user's.
void set_where(pybind11::function where, pybind11::function source, pybind11::function path,
               pybind11::object call, std::vector<std::string> own);

// The module whose forward runs, and the user's line. With the GIL.
std::pair<std::string, std::string> where();
// The user's line alone, "" where Python raised.
std::string source_here();
// Which call in the code runs: of the frames from here to the innermost one of the user's code or
// to the call of a module. 0 where no Python runs.
std::uint64_t place_here();
// The path from the first to the last of some modules, each called within the one before.
std::string path_of(const pybind11::list& modules);

}  // namespace habana_mp::watch
