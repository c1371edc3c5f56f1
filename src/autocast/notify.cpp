#include "autocast/notify.h"

#include <algorithm>
#include <string>

#include "base/name_numbers.h"
#include "call/errors.h"
#include "cast/tensors.h"
#include "policy/op_list.h"

namespace habana_mp::autocast {
namespace {

class Texts final : public listen::CallTexts {
 public:
  explicit Texts(const DecidedCall& call) : call_(call) {}

  std::string name() const override { return std::string(base_name(call_.op.name)); }
  // As Python shows torch.ops.aten.mm.default.
  std::string original() const override {
    const c10::OperatorName& name = call_.op.handle.operator_name();
    return "<OpOverload(op='aten." + name.name.substr(name.name.find("::") + 2) + "', overload='" +
           (name.overload_name.empty() ? "default" : name.overload_name) + "')>";
  }
  std::string rule() const override {
    if (call_.decision.cause == Cause::NoLowKernel)
      return no_kernel_text(call_.call.described(), call_.rules.policy->low());
    const Policy& policy = *call_.rules.policy;
    Resolution found = policy.resolve_overload(call_.op.name);
    if (!found.rule.listed) found.rule = call_.rules.by_op[call_.op.index].rule;
    return policy.rule_text(found);
  }
  std::string argument(std::size_t i) const override {
    return call_.call.label(i, call_.op.handle.schema());
  }
  std::shared_ptr<const Policy> policy() const override { return call_.rules.policy; }

 private:
  const DecidedCall& call_;
};

// Whether tensors of the call only describe some, for a compiler. A subclass that wraps tensors has
// the keys of those that do.
bool is_compiling(const Call& call) {
  if (!call.may_be_traced()) return false;
  const pybind11::gil_scoped_acquire gil;
  const auto tensors = call.tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return is_fake(tensor); });
}

}  // namespace

void notify_begin(listen::WatchedCall& watched, const DecidedCall& decided) {
  if (is_compiling(decided.call)) return;
  const Texts texts(decided);
  const bool numbered = listen::anyone_hears(listen::Hears::Calls);
  c10::SmallVector<at::Tensor, 8> tensors;
  watched.begin({.op = numbered ? number_of(base_name(decided.op.name)) : 0,
                 .decider_id = decided.rules.decider_id,
                 .front_end = front_end_of(decided.rules.of_conversion),
                 .dispatched = true,
                 .hides = decided.rules.by_op[decided.op.index].insides == Insides::Own,
                 .decision = decided.decision,
                 .casting = decided.casting,
                 .arguments = decided.call.described(),
                 .texts = texts},
                [&]() -> Tensors {
                  tensors = decided.call.tensors();
                  return tensors;
                });
}

void notify_end(listen::WatchedCall& watched, const Call& call) {
  if (watched.begun()) watched.end(call.results());
}

}  // namespace habana_mp::autocast
