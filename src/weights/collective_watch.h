// Collectives of torch.distributed write to tensors without moving their version counters: while
// one of these lives, the weight cache is notified of them.
#pragma once

#include <torch/library.h>

#include <memory>

namespace habana_mp {

// Null where torch was built without distributed.
std::unique_ptr<torch::Library> watch_collectives();

}  // namespace habana_mp
