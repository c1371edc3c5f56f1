// habana_mp._core.Policy, parse_op_list, candidates and decide, and the tables of src/policy. Enums
// cross the border as numbers; the tuples ACTIONS, DTYPES, ROLES and CAUSES name them, so that
// Python repeats no order.
#include <pybind11/stl.h>

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "policy/decide.h"
#include "policy/dtype.h"
#include "policy/names.h"
#include "policy/op_list.h"
#include "policy/op_traits.h"
#include "policy/policy.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

// A tuple of the names in a table.
template <typename Names>
py::tuple tuple_of(const Names& names) {
  py::list out;
  for (const auto& name : names) out.append(name);
  return py::tuple(out);
}

std::vector<std::string> names_of(std::span<const DType> dtypes) {
  std::vector<std::string> out;
  for (const DType dtype : dtypes) out.emplace_back(dtype_name(dtype));
  return out;
}

// A number from Python as an enum that has `count` values.
template <typename Enum>
Enum checked(int value, std::size_t count) {
  if (value < 0 || static_cast<std::size_t>(value) >= count) {
    throw std::invalid_argument(std::to_string(value) + " is out of range. 0 to " +
                                std::to_string(count - 1) + " are accepted");
  }
  return static_cast<Enum>(value);
}

DType dtype_of_policy(std::string_view name) {
  const DType dtype = dtype_named(name);
  if (dtype != DType::Other) return dtype;
  throw std::invalid_argument(quoted(name) +
                              " is not a dtype of a policy. bfloat16 or float16 is accepted");
}

Action action_named(std::string_view name) {
  for (std::size_t i = 0; i < kActionNames.size(); ++i) {
    if (name == kActionNames[i]) return static_cast<Action>(i);
  }
  throw std::invalid_argument(
      quoted(name) + " is not a rest of a policy. first_input, fp32 or inputs is accepted");
}

using PyNames = std::vector<std::tuple<std::string, std::string, int>>;  // entry, file, line

std::vector<ListedName> from_python(const PyNames& names) {
  std::vector<ListedName> out;
  out.reserve(names.size());
  for (const auto& [name, file, line] : names) out.push_back(read_listed(name, {file, line}));
  return out;
}

PyNames to_python(const std::vector<ListedName>& names) {
  PyNames out;
  out.reserve(names.size());
  for (const ListedName& listed : names)
    out.emplace_back(listed.written(), listed.origin.file, listed.origin.line);
  return out;
}

// Title of the list, entry, modules, file, line.
using PyLimited = std::vector<std::tuple<std::string, std::string, std::string, std::string, int>>;

std::vector<LimitedName> from_python(const PyLimited& limited) {
  std::vector<LimitedName> out;
  for (const auto& [title, entry, modules, file, line] : limited)
    out.push_back({action_named(title), read_listed(entry, {file, line}), modules});
  return out;
}

PyLimited to_python(const std::vector<LimitedName>& limited) {
  PyLimited out;
  for (const auto& [action, listed, modules] : limited) {
    out.emplace_back(action_name(action), listed.written(), modules, listed.origin.file,
                     listed.origin.line);
  }
  return out;
}

py::tuple to_python(const Resolution& found) {
  return py::make_tuple(static_cast<int>(found.rule.action), static_cast<int>(found.rule.low),
                        found.rule.listed, found.listed_as, found.origin.file, found.origin.line);
}

using PyArgs = std::vector<std::tuple<int, bool, int>>;  // dtype, 0-dim, role

std::vector<Arg> from_python(const PyArgs& args) {
  std::vector<Arg> described;
  described.reserve(args.size());
  for (const auto& [dtype, zero_dim, role] : args) {
    described.push_back(
        {checked<DType>(dtype, kDTypeCount), zero_dim, checked<Role>(role, kRoleCount)});
  }
  return described;
}

py::tuple to_python(const Decision& decision) {
  return py::make_tuple(static_cast<int>(decision.to), static_cast<int>(decision.cause),
                        static_cast<int>(decision.roles));
}

void bind_tables(py::module_& m) {
  py::list names, eligible_names, source_names;
  py::dict short_names;
  for (const DTypeRow& row : kDTypes) {
    names.append(row.name);
    short_names[row.name] = row.short_name;
    if (row.eligible) eligible_names.append(row.name);
    if (may_be_cast(row.dtype)) source_names.append(row.name);
  }
  m.attr("DTYPES") = py::tuple(names);
  m.attr("SHORT_DTYPE_NAMES") = short_names;
  m.attr("ELIGIBLE_DTYPES") = py::tuple(eligible_names);
  m.attr("SOURCE_DTYPES") = py::tuple(source_names);
  m.attr("LOW_DTYPES") = tuple_of(names_of(kLowDTypes));
  m.attr("ACTIONS") = tuple_of(kActionNames);
  m.attr("ROLES") = tuple_of(kRoleNames);
  m.attr("CAUSES") = tuple_of(kCauseNames);
  m.attr("FIRST_INPUT_NAMES") = tuple_of(kFirstInputNames);
  m.attr("STATISTIC_NAMES") = tuple_of(kStatisticNames);

  py::dict norms;
  for (const Norm& norm : kNorms)
    norms[py::str(norm.op)] = py::make_tuple(norm.statistics, norm.functional_statistics);
  m.attr("NORMS") = norms;
  m.attr("CONTIGUOUS_OPS") = tuple_of(kContiguousOps);
  py::dict left_out;
  for (const NotComputing& group : not_computing())
    left_out[group.reason] = py::str(group.ops).attr("split")();
  m.attr("NOT_COMPUTING") = left_out;
  m.attr("LOW_LEVEL_PREFIXES") = tuple_of(kLowLevelPrefixes);
}

}  // namespace

void bind_policy(py::module_& m) {
  bind_tables(m);
  m.attr("MAX_LIST_BYTES") = kMaxListBytes;

  py::class_<Policy, std::shared_ptr<Policy>>(m, "Policy")
      .def(py::init([](std::string name, const std::string& low, const std::string& rest,
                       const PyNames& lower, const PyNames& fp32, const PyNames& promote,
                       const PyNames& error, const std::vector<std::string>& low_dtypes,
                       bool cached, const PyLimited& limited) {
             std::vector<DType> accepted;
             for (const std::string& name : low_dtypes) accepted.push_back(dtype_of_policy(name));
             return Policy(
                 std::move(name), dtype_of_policy(low), action_named(rest),
                 {from_python(lower), from_python(fp32), from_python(promote), from_python(error)},
                 std::move(accepted), cached, from_python(limited));
           }),
           py::arg("name"), py::arg("low"), py::arg("rest"), py::arg("lower"), py::arg("fp32"),
           py::arg("promote"), py::arg("error"), py::arg("low_dtypes") = names_of(kLowDTypes),
           py::arg("cached") = true, py::arg("limited") = PyLimited{})
      .def_static("parse", [](const std::string& text) { return Policy::parse(text); })
      .def_property_readonly("name", &Policy::name)
      .def_property_readonly("low", [](const Policy& policy) { return dtype_name(policy.low()); })
      .def_property_readonly("rest",
                             [](const Policy& policy) { return action_name(policy.rest()); })
      .def_property_readonly("low_dtypes",
                             [](const Policy& policy) { return names_of(policy.low_dtypes()); })
      .def_property_readonly("cached", &Policy::cached)
      .def_property_readonly("lower",
                             [](const Policy& policy) { return to_python(policy.lists().lower); })
      .def_property_readonly("fp32",
                             [](const Policy& policy) { return to_python(policy.lists().fp32); })
      .def_property_readonly("promote",
                             [](const Policy& policy) { return to_python(policy.lists().promote); })
      .def_property_readonly("error",
                             [](const Policy& policy) { return to_python(policy.lists().error); })
      .def_property_readonly("limited",
                             [](const Policy& policy) { return to_python(policy.limited()); })
      .def("text", &Policy::text)
      .def("__hash__", &Policy::hash)
      .def(
          "__eq__", [](const Policy& a, const Policy& b) { return a == b; }, py::is_operator())
      .def(
          "resolve",
          [](const Policy& policy, const std::string& home_name) {
            return to_python(policy.resolve(home_name));
          },
          "(action, low, listed, listed_as, file, line); listed_as and file are empty where the "
          "rest decides")
      .def(
          "rule_text",
          [](const Policy& policy, int action, bool listed, const std::string& listed_as,
             const std::string& file, int line) {
            const auto checked_action = checked<Action>(action, kActionNames.size());
            return policy.rule_text(
                {{checked_action, policy.low(), listed}, listed_as, {file, line}});
          },
          py::arg("action"), py::arg("listed"), py::arg("listed_as"), py::arg("file"),
          py::arg("line"), "A rule as the log, the report and errors show it")
      .def("resolve_overload", [](const Policy& policy, const std::string& overload) {
        return to_python(policy.resolve_overload(overload));
      });

  m.def(
      "parse_op_list",
      [](const std::string& text, const std::string& path) {
        const OpList list = parse_op_list(text, path);
        std::vector<std::tuple<std::string, int, bool>> ops;
        ops.reserve(list.ops.size());
        for (const ListedOp& op : list.ops) ops.emplace_back(op.name, op.line, op.removed);
        return py::make_tuple(list.edits, ops);
      },
      py::arg("text"), py::arg("path"), "(edits, [(name, line, removed), ...])");
  m.def(
      "read_entry",
      [](const std::string& text) -> std::optional<std::pair<std::string, std::string>> {
        if (!is_entry(text)) return std::nullopt;
        const Entry entry = *read_entry(text);
        return std::pair(written({entry.op, entry.low, {}}), std::string(entry.modules));
      },
      py::arg("text"),
      "(entry with its dtype by its full name, modules that it is limited to or \"\"); None for a "
      "text "
      "that is none");
  m.def("candidates", &candidates, py::arg("home_name"));
  m.def("dispatched_candidates", &dispatched_candidates, py::arg("op"));
  m.def(
      "role_of",
      [](bool norm, bool first, bool written, bool statistic) {
        return static_cast<int>(role_of({norm, first, written, statistic}));
      },
      py::arg("norm"), py::arg("first"), py::arg("written"), py::arg("statistic"));
  m.def("computes", &computes, py::arg("op"));
  m.def(
      "is_compound", [](const std::string& op) { return insides_of(op) == Insides::Compound; },
      py::arg("op"));
  m.def("refuses_mixed", &refuses_mixed, py::arg("op"));
  m.def("is_norm", &is_norm, py::arg("op"));
  m.def("may_lack_low_kernel", &may_lack_low_kernel, py::arg("op"));
  m.def(
      "decide",
      [](int action, int low, bool listed, const PyArgs& args, bool explicit_dtype) {
        const Rule rule{checked<Action>(action, kActionNames.size()),
                        checked<DType>(low, kDTypeCount), listed};
        return to_python(decide(rule, from_python(args), explicit_dtype));
      },
      py::arg("action"), py::arg("low"), py::arg("listed"), py::arg("args"),
      py::arg("explicit_dtype"), "(to, cause, roles)");
  m.def(
      "decide_without_low_kernel",
      [](int action, const PyArgs& args, bool explicit_dtype) {
        const Rule rule{checked<Action>(action, kActionNames.size()), DType::Other, true};
        return to_python(decide_without_low_kernel(rule, from_python(args), explicit_dtype));
      },
      py::arg("action"), py::arg("args"), py::arg("explicit_dtype"), "(to, cause, roles)");
}

}  // namespace habana_mp
