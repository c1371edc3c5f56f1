// The refusal of an op that a policy lists as an error (D31, F184 to F186, F190).
#pragma once

#include <string>
#include <string_view>

namespace habana_mp {

// What the RuntimeError says. `op`: a name of the op, with its overload or without. `rule`: the
// text of the rule, which names the list.
std::string refusal(std::string_view op, std::string_view rule);

}  // namespace habana_mp
