// A policy as a region of hmp.autocast applies it: one rule for every op of the dispatcher.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "policy/policy.h"

namespace habana_mp::autocast {

struct Rules {
  std::shared_ptr<const Policy> policy;
  std::vector<Rule> by_op;       // in the order of the catalogue (autocast/catalogue.h)
  std::uint64_t decider_id = 0;  // distinguishes these rules from others in the report
  mutable std::atomic<bool> registered = false;  // the kernels of its ops
};

}  // namespace habana_mp::autocast
