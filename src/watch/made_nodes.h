// Which row of a report made which node of autograd, while somebody wants to know of a backward
// pass whose ops it runs. For this folder and the probes.
#pragma once

#include <cstdint>

#include "report/event.h"

namespace habana_mp::watch {

// Balanced: kept as long as one wants them.
void keep_nodes(bool wanted);

// A call has ended that made nodes. With the lock of the observer.
void note_nodes(const report::Call& call);

// The site whose call made the autograd node with this number; kNone where none is known.
report::SiteId site_of_node(std::uint64_t number);

}  // namespace habana_mp::watch
