// Faults that tests seed on purpose, to see that they are found: each has a name, and is in force
// in a process whose HABANA_MP_FAULT has that name, where the core was built for it
// (CMakeLists.txt: HABANA_MP_FAULTS). Elsewhere it is false when it is compiled, and nothing is
// left of it.
#pragma once

#ifdef HABANA_MP_FAULTS
#include <cstdlib>
#include <string_view>
#endif

namespace habana_mp {

#ifdef HABANA_MP_FAULTS
inline bool fault(std::string_view name) {
  static const char* const seeded = std::getenv("HABANA_MP_FAULT");
  return seeded != nullptr && name == seeded;
}
#else
constexpr bool fault(const char*) { return false; }
#endif

}  // namespace habana_mp
