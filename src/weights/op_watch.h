// Ops that write to their arguments without moving a version counter: collectives of
// torch.distributed, the fused optimizers of torch, and ops of others that declare such an argument
// (`Tensor(a!)`). While they are watched, the weight cache is notified of what they write to.
#pragma once

namespace habana_mp {

// Those that are defined later are watched before the next copy is made.
void watch_ops();
void unwatch_ops();

}  // namespace habana_mp
