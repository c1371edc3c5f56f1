// Where an op was called: "Net: encoder.layers.0" is the path encoder.layers.0 below the root Net.
// Both are empty outside of modules, and the path is in the root. Python has the same in
// habana_mp/_show/module_path.py.
#pragma once

#include <string_view>

namespace habana_mp::report {

struct ModulePath {
  std::string_view root, path;

  explicit ModulePath(std::string_view text) : root(text) {
    const std::size_t colon = text.find(": ");
    if (colon == std::string_view::npos) return;
    root = text.substr(0, colon);
    path = text.substr(colon + 2);
  }
};

}  // namespace habana_mp::report
