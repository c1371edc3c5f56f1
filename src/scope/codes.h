// Codes of the policies in force: torch.compile, whose guards see torch's own autocast state alone,
// distinguishes graphs by them. The dtypes of three device types that this package never runs on
// spell a code.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <memory>

#include "scope/state.h"

namespace habana_mp::autocast {

// Which casts traced code makes for a policy: raised whenever these change, so that the graphs
// which torch.compile keeps on disk from an older release are not used.
inline constexpr unsigned kTracedCasts = 6;

using Code = std::array<c10::ScalarType, kSigns.size()>;

// The dtypes that spell a code. 0 stands for no policy.
Code digits_of(int code);

// The state of these scopes with its code: equal scopes share one while it lives. Throws
// std::runtime_error once there are no codes left, after some 27,000 policies.
std::shared_ptr<const State> state_of(const Scopes& scopes);

}  // namespace habana_mp::autocast
