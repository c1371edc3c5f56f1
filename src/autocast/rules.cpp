#include "autocast/rules.h"

#include <utility>

#include "autocast/catalogue.h"
#include "autocast/notify.h"
#include "listen/event.h"

namespace habana_mp::autocast {

namespace {

// What inside a compound does not run as it does outside (D41): unless the policy lowers more than
// products, or decides the rest, there is no such op, and compounds need no kernel of ours.
bool differs_inside(const Rules& rules, const Catalogue& all) {
  if (rules.policy->rest() != Action::Inputs) return true;
  for (const Op& op : all.ops) {
    if (rules.by_op[op.index].rule.action == Action::Lower && !op.product) return true;
  }
  return false;
}

// The rest is for ops that compute, "first_input" for those that may have two tensors (D15, D40).
bool is_rest(const Op& op, Action rest) {
  if (rest == Action::Inputs || !op.computes) return false;
  return op.form.most_tensors >= (rest == Action::FirstInput ? 2 : 1);
}

}  // namespace

std::shared_ptr<const Rules> compile(std::shared_ptr<const Policy> policy, bool of_conversion) {
  const Catalogue& all = catalogue();
  auto rules = std::make_shared<Rules>();
  const Rule none{Action::Inputs, policy->low(), false};
  const Rule rest{policy->rest(), policy->low(), false};
  const Rule widest{Action::Promote, policy->low(), false};
  rules->by_op.reserve(all.ops.size());
  for (const Op& op : all.ops) {
    const bool by_rest = is_rest(op, policy->rest());
    const Rule& unlisted = by_rest ? rest : op.refuses_mixed ? widest : none;
    const bool watched = unlisted.action != Action::Inputs || op.may_lack_low_kernel;
    rules->by_op.push_back({unlisted, op.insides, watched});
  }
  for (const Entry& entry : policy->entries()) {
    const auto found = all.by_name.find(entry.op);
    if (!entry.modules.empty() || found == all.by_name.end()) continue;
    for (const std::size_t index : found->second) {
      const Rule rule = policy->resolve_overload(all.ops[index].name).rule;
      // A name for another low dtype decides nothing.
      if (rule.listed) rules->by_op[index] = {rule, Insides::Own, true};
      rules->has_int8 = rules->has_int8 || is_int8(rule.action);
    }
  }
  rules->decider_id = listen::decider_id(*policy, front_end_of(of_conversion));
  rules->of_conversion = of_conversion;
  rules->policy = std::move(policy);
  if (!differs_inside(*rules, all)) {
    for (OpRule& op : rules->by_op) {
      if (op.insides == Insides::Compound) op.insides = Insides::ByRules;
    }
  }
  return rules;
}

}  // namespace habana_mp::autocast
