#include "convert/recast.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cstddef>

#include "cast/dtypes.h"
#include "policy/policy.h"
#include "scope/regions.h"

namespace habana_mp {

bool may_be_recast(std::string_view op, DType to) {
  using namespace autocast;
  constexpr auto kCpu = static_cast<std::size_t>(std::ranges::find(kDevices, c10::DeviceType::CPU) -
                                                 kDevices.begin());
  const c10::DispatchKeySet excluded = excluded_here();
  if (!is_on(kCpu, excluded)) return false;
  const Ruling here = ruling_here(kCpu, excluded);
  switch (here.ruler) {
    case Ruler::Nobody:
      return false;
    case Ruler::Torch:  // whose list has all of them
      return at::autocast::get_autocast_dtype(c10::DeviceType::CPU) != scalar_type(to);
    case Ruler::Ours:
      break;
  }
  if (here.scope->rules->of_conversion) return false;
  const Rule rule = here.scope->rules->policy->resolve_overload(op).rule;
  return rule.action != Action::Lower || rule.low != to;
}

}  // namespace habana_mp
