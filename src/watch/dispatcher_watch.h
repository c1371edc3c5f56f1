// Torch tells the report of every op that it dispatches. An op that no rule has decided is a row
// where no other op has called it.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace habana_mp::watch {

// To be removed by its handle.
at::CallbackHandle watch_dispatcher();

// What ops that nothing decides are counted under: of the conversion in force, 0 without.
std::uint32_t conversion_context();
void set_conversion_context(std::uint32_t context);

}  // namespace habana_mp::watch
