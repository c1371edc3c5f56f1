#include "torch/autocast_record.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "record/cast_log.h"
#include "torch/names.h"
#include "torch/tensor_cast.h"

namespace habana_mp::autocast {
namespace {

// As Python shows torch.ops.aten.mm.default.
std::string shown(const c10::OperatorName& name) {
  return "<OpOverload(op='aten." + name.name.substr(name.name.find("::") + 2) + "', overload='" +
         (name.overload_name.empty() ? "default" : name.overload_name) + "')>";
}

// "lower: mm, lists/my.txt:3", as the log shows the rules of patched ops.
std::string rule_text(const Op& op, const Policy& policy) {
  constexpr const char* kLists[] = {"lower", "fp32", "promote"};
  const Resolution found = policy.resolve_overload(op.name);
  std::string place = found.origin.file.empty() ? policy.name() : found.origin.file;
  if (found.origin.line > 0) place += ":" + std::to_string(found.origin.line);
  return std::string(kLists[static_cast<int>(found.rule.action)]) + ": " + found.listed_as + ", " +
         place;
}

// Whether tensors of the call only describe some, for a compiler. A subclass that wraps tensors has
// the keys of those that do.
bool stand_in(const Call& call) {
  if (!call.traced()) return false;
  const py::gil_scoped_acquire gil;
  const auto tensors = call.tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() &&
           (tensor.key_set().has(c10::DispatchKey::Functionalize) ||
            is_fake(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)).ptr()));
  });
}

}  // namespace

void log_call(const Op& op, const Policy& policy, const Call& call, const Decision& decision,
              bool casting) {
  if (record::level() == record::Level::Off || !record::worth_a_line(decision.cause, casting) ||
      call.traced())
    return;
  const std::string name = shown(op.handle.operator_name());
  record::Event event{.op = name, .to = decision.to, .cause = decision.cause};
  const py::gil_scoped_acquire gil;
  if (record::level() == record::Level::Casts) return record::write(event);
  std::vector<record::CastArgument> casts;
  for (std::size_t i = 0; i < call.described().size(); ++i) {
    const Arg& described = call.described()[i];
    if (decision.casts(described))
      casts.push_back({call.label(i, op.handle.schema()), described.dtype});
  }
  const auto [module, source] = py::module_::import("habana_mp._watch.where")
                                    .attr("where")()
                                    .cast<std::pair<std::string, std::string>>();
  const std::string rule = rule_text(op, policy);
  event.casts = casts;
  event.rule = rule;
  event.module = module;
  event.source = source;
  record::write(event);
}

void watch_call(observer::Watch& watch, const Op& op, const Rules& rules, const Call& call,
                const Decision& decision) {
  if (!observer::reporting() || stand_in(call)) return;
  const std::string_view name = std::string_view(op.name).substr(0, op.name.find('.'));
  const observer::Watch::What what{.op = number_of(name),
                                   .context = rules.context,
                                   .front_end = record::FrontEnd::Autocast,
                                   .decision = decision,
                                   .hides = true};
  watch.begin(what, call.tensors(), [&] {
    record::Site site;
    site.policy = rules.policy->name();
    site.rule = rule_text(op, *rules.policy);
    return site;
  });
}

void end_watch(observer::Watch& watch, const Call& call) {
  if (watch.begun()) watch.end(call.results());
}

}  // namespace habana_mp::autocast
