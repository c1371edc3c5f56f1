// habana_mp._core.Policy, Entry, Rule, parse_op_list, candidates and decide, and the tables of
// src/policy. Values have the fields of kPolicySettings and kEntryFields, with dtypes, actions and
// lists by their names, "" for none. What runs at each call crosses the border as numbers; the
// tuples ACTIONS, DTYPES, ROLES and CAUSES name them, so that Python repeats no order.
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bind/module.h"
#include "policy/decide.h"
#include "policy/dtype.h"
#include "policy/names.h"
#include "policy/op_list.h"
#include "policy/op_traits.h"
#include "policy/policy.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

// A tuple of the names in a table, each of them by `name`.
template <typename Table, typename Name = std::identity>
py::tuple tuple_of(Table&& table, const Name& name = {}) {
  py::list out;
  for (const auto& each : table) out.append(std::invoke(name, each));
  return py::tuple(out);
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

// Lists may have any bytes in their comments.
py::object to_python(const std::string& text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}
py::object to_python(int line) { return py::int_(line); }
py::object to_python(bool on) { return py::bool_(on); }
py::object to_python(DType dtype) {
  return py::str(dtype == DType::Other ? "" : dtype_name(dtype));
}
py::object to_python(Compiled compiled) { return py::str(compiled_name(compiled)); }
py::object to_python(Action action) { return py::str(action_name(action)); }
py::object to_python(const std::optional<Action>& list) {
  return list ? to_python(*list) : py::str();
}
py::object to_python(const std::vector<DType>& dtypes) {
  return py::list(tuple_of(dtypes, dtype_name));
}
py::object to_python(const std::vector<Entry>& entries) { return py::cast(entries); }

template <typename T>
void from_python(py::handle given, T& value) {
  value = given.cast<T>();
}
void from_python(py::handle given, bool& on) {
  if (!py::isinstance<py::bool_>(given)) throw py::cast_error();
  on = given.cast<bool>();
}
void from_python(py::handle given, DType& dtype) {
  const auto name = given.cast<std::string>();
  dtype = DType::Other;
  if (!name.empty()) read_setting(name, dtype);
}
void from_python(py::handle given, Action& rest) { read_setting(given.cast<std::string>(), rest); }
void from_python(py::handle given, Compiled& compiled) {
  read_setting(given.cast<std::string>(), compiled);
}
void from_python(py::handle given, std::optional<Action>& list) {
  const auto name = given.cast<std::string>();
  const auto found = std::ranges::find(kLists, name, action_name);
  if (found == kLists.end() && !name.empty())
    throw std::invalid_argument(habana_mp::quoted(name) + " is not a list");
  list = found == kLists.end() ? std::nullopt : std::optional(*found);
}
void from_python(py::handle given, std::vector<DType>& dtypes) {
  dtypes.clear();
  for (const py::handle each : given) from_python(each, dtypes.emplace_back());
}

// What a value is that has another type, for an error.
constexpr const char* kind_of(const bool&) { return "true or false"; }
constexpr const char* kind_of(const int&) { return "a whole number"; }
template <typename T>
constexpr const char* kind_of(const std::vector<T>&) {
  return "a list";
}
template <typename T>
constexpr const char* kind_of(const T&) {
  return "a string";
}

constexpr auto kPolicyFields =
    std::tuple_cat(kPolicySettings, std::tuple{Field{"entries", &PolicyFields::entries}});

const auto& fields_of(const Entry&) { return kEntryFields; }
const auto& fields_of(const PolicyFields&) { return kPolicyFields; }
const Entry& values_of(const Entry& entry) { return entry; }
const PolicyFields& values_of(const Policy& policy) { return policy.fields(); }

template <typename T>
py::dict to_dict(const T& value) {
  py::dict given;
  for_each_field(fields_of(values_of(value)), [&](const auto& field) {
    given[field.key] = to_python(values_of(value).*field.member);
  });
  return given;
}

template <typename T>
T from_dict(const py::dict& given) {
  std::decay_t<decltype(values_of(std::declval<T>()))> values;
  std::size_t known = 0;
  for_each_field(fields_of(values), [&](const auto& field) {
    if (!given.contains(field.key)) {
      if (field.required) throw py::type_error(std::string(field.key) + " is missing");
      return;
    }
    try {
      from_python(given[field.key], values.*field.member);
    } catch (const py::cast_error&) {
      throw std::invalid_argument(std::string(field.key) + " must be " +
                                  kind_of(values.*field.member));
    }
    ++known;
  });
  if (known != given.size()) throw py::type_error("a field is unknown");
  return T(std::move(values));
}

// A value: made of its fields by name, which are properties; `replaced` gives it with others.
template <typename T, typename Class>
void bind_value(Class& type) {
  using Values = std::decay_t<decltype(values_of(std::declval<T>()))>;
  type.def(py::init([](const py::kwargs& given) { return from_dict<T>(given); }))
      .def(py::pickle(&to_dict<T>, &from_dict<T>))
      .def("replaced", [](const T& value, const py::kwargs& changes) {
        py::dict given = to_dict(value);
        for (const auto& [key, changed] : changes) given[key] = changed;
        return from_dict<T>(given);
      });
  for_each_field(fields_of(Values{}), [&](const auto& field) {
    type.def_property_readonly(field.key, [member = field.member](const T& value) {
      return to_python(values_of(value).*member);
    });
  });
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
  const auto names_of = [](const auto& is_one) {
    return tuple_of(kDTypes | std::views::filter(is_one), &DTypeRow::name);
  };
  py::dict short_names;
  for (const DTypeRow& row : kDTypes) short_names[row.name] = row.short_name;
  m.attr("DTYPES") = tuple_of(kDTypes, &DTypeRow::name);
  m.attr("SHORT_DTYPE_NAMES") = short_names;
  m.attr("ELIGIBLE_DTYPES") = names_of(&DTypeRow::eligible);
  m.attr("SOURCE_DTYPES") = names_of([](const DTypeRow& row) { return may_be_cast(row.dtype); });
  m.attr("COMPILED") = tuple_of(kCompiledNames);
  m.attr("LOW_DTYPES") = tuple_of(kLowDTypes, dtype_name);
  m.attr("ACTIONS") = tuple_of(kActionNames);
  m.attr("LISTS") = tuple_of(kLists, action_name);
  m.attr("OPTIONAL_LISTS") = tuple_of(kLists | std::views::filter(is_optional), action_name);
  py::list settings;
  for_each_field(kPolicySettings, [&](const auto& field) { settings.append(field.key); });
  m.attr("POLICY_SETTINGS") = py::tuple(settings);
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

  py::class_<Entry> entry(m, "Entry");
  bind_value<Entry>(entry);
  entry.def_property_readonly("base", [](const Entry& of) { return base_name(of.op); })
      .def_property_readonly("place", &place)
      .def("__str__", &written)
      .def("__hash__", [](const Entry& of) { return py::hash(py::str(written(of))); })
      .def("__eq__", [](const Entry& a, const Entry& b) { return a == b; }, py::is_operator());

  py::class_<Resolution>(m, "Rule")
      .def_property_readonly("action",
                             [](const Resolution& of) { return static_cast<int>(of.rule.action); })
      .def_property_readonly("low",
                             [](const Resolution& of) { return static_cast<int>(of.rule.low); })
      .def_readonly("entry", &Resolution::entry, "None where the rest of the policy decides");

  py::class_<Policy, std::shared_ptr<Policy>> policy(m, "Policy");
  bind_value<Policy>(policy);
  policy.def_static("parse", [](const std::string& text) { return Policy::parse(text); })
      .def("text", &Policy::text)
      .def("__hash__", &Policy::hash)
      .def(
          "__eq__", [](const Policy& a, const Policy& b) { return a == b; }, py::is_operator())
      .def("resolve", &Policy::resolve, py::arg("home_name"))
      .def("resolve_overload", &Policy::resolve_overload, py::arg("overload"))
      .def(
          "rule_text",
          [](const Policy& of, const Entry& listed) {
            return of.rule_text({{listed.list.value(), of.low(), true}, listed});
          },
          py::arg("entry"), "A rule as the log, the report and errors show it")
      .def(
          "rest_text",
          [](const Policy& of, int action) {
            return of.rule_text(
                {{checked<Action>(action, kActionNames.size()), of.low(), false}, {}});
          },
          py::arg("action"), "The same without an entry");

  m.def(
      "parse_op_list",
      [](const std::string& text, const std::string& path, const std::string& list, bool all) {
        std::vector<ListError> mistakes;
        std::optional<Action> title;
        from_python(py::str(list), title);
        const OpList read = parse_op_list(text, path, title, all ? &mistakes : nullptr);
        std::vector<Entry> named, removed;
        for (const ListedOp& op : read.ops) (op.removed ? removed : named).push_back(op.entry);
        std::vector<std::pair<int, std::string>> found;
        for (const ListError& mistake : mistakes) found.emplace_back(mistake.line, mistake.reason);
        return py::make_tuple(read.edits, named, removed, found);
      },
      py::arg("text"), py::arg("path"), py::arg("list") = "", py::arg("all_mistakes") = false,
      "(edits, named, removed, mistakes as line and reason)");
  m.def(
      "read_entry",
      [](const std::string& text) { return is_entry(text) ? read_entry(text) : std::nullopt; },
      py::arg("text"), "None for a text that is no entry");
  m.def(
      "conflicts_of",
      [](std::vector<Entry> entries) {
        std::vector<std::pair<Entry, std::string>> found;
        for (Conflict& each : conflicts_of(std::move(entries)))
          found.emplace_back(std::move(each.entry), std::move(each.why));
        return found;
      },
      py::arg("entries"), "Entries that another list has too, and why they cannot be in both");
  m.def("problem_of", &problem_of, py::arg("entry"), "Why no policy takes it; '' where one does");
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
