// Numbers for names, for the report: of ops and paths of modules. The same until the process
// ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace habana_mp {

inline constexpr std::size_t kMostNames = 1 << 16;

// 0 for "", and once there are kMostNames.
std::uint32_t number_of(std::string_view name);
std::string name_of(std::uint32_t number);

}  // namespace habana_mp
