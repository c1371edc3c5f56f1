// A policy as a region of hmp.autocast applies it: one rule for every op of the dispatcher.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "policy/op_traits.h"
#include "policy/policy.h"

namespace habana_mp::autocast {

struct OpRule {
  Rule rule;
  Insides insides;
  bool watched;  // for the error that the device has no low kernel of the op (D42)

  // Whether a call of the op passes by our kernels without a difference.
  constexpr bool does_nothing() const {
    return rule.action == Action::Inputs && insides == Insides::ByRules && !watched;
  }
};

struct Rules {
  std::shared_ptr<const Policy> policy;
  bool of_conversion = false;    // for the insides of compounds that convert has patched (D41)
  std::vector<OpRule> by_op;     // in the order of the catalogue (autocast/catalogue.h)
  std::uint64_t decider_id = 0;  // distinguishes these rules from others in the report
  mutable std::atomic<bool> registered = false;  // the kernels of its ops
};

}  // namespace habana_mp::autocast
