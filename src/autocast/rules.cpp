#include "autocast/rules.h"

#include <utility>

#include "autocast/catalogue.h"
#include "watch/decider_id.h"

namespace habana_mp::autocast {

std::shared_ptr<const Rules> compile(std::shared_ptr<const Policy> policy) {
  const Catalogue& all = catalogue();
  auto rules = std::make_shared<Rules>();
  rules->by_op.assign(all.ops.size(), Rule{Action::Inputs, policy->low(), false});
  const Lists& lists = policy->lists();
  for (const auto* names : {&lists.lower, &lists.fp32, &lists.promote, &lists.error}) {
    for (const ListedName& listed : *names) {
      const auto found = all.by_name.find(listed.name);
      if (found == all.by_name.end()) continue;
      for (const std::size_t index : found->second) {
        rules->by_op[index] = policy->resolve_overload(all.ops[index].name).rule;
      }
    }
  }
  rules->decider_id = watch::decider_id(*policy, report::FrontEnd::Autocast);
  rules->policy = std::move(policy);
  return rules;
}

}  // namespace habana_mp::autocast
