// The kernels of hmp.autocast: what the dispatcher calls before an op inside a region. Each casts
// the arguments as decide() says and calls the op below autocast. Knows how the dispatcher writes a
// call (an argument stack and a schema); what is in force where is autocast_state.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "scope/regions.h"

namespace habana_mp::autocast {

// A policy for every op of the dispatcher.
struct Rules {
  std::shared_ptr<const Policy> policy;
  std::vector<Rule> by_op;    // as the catalogue of ops counts them
  std::uint32_t context = 0;  // tells these rules from others in the report
  mutable std::atomic<bool> served = false;
};

std::shared_ptr<const Rules> compile(std::shared_ptr<const Policy> policy);

// Sees to it that the kernels of all ops that the policy names, and of those that torch itself
// casts, are registered.
void serve(const Rules& rules);

// The overloads of torch's ops that a policy may name: "mm", "pow.Tensor_Scalar". Those that write
// to an argument are none: autocast leaves them alone (F85, F86).
std::vector<std::string> dispatched_ops();

}  // namespace habana_mp::autocast
