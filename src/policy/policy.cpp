// Policy: checks, look-up and text form. See policy.h.
#include "policy/policy.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "policy/names.h"
#include "policy/op_traits.h"

namespace habana_mp {
namespace {

bool is_policy_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-+.").find(c) != std::string_view::npos;
  });
}

std::vector<Entry> sorted(std::vector<Entry> entries) {
  // Stable: of a double the first place is kept.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.deciding() < b.deciding(); });
  entries.erase(std::unique(entries.begin(), entries.end()), entries.end());
  return entries;
}

// Of two entries that differ in the list alone, the one of the earlier list first. For the whole
// model an op may be in the promote or the error list, too, which decides then or does not.
bool may_both_be(const Entry& one, const Entry& other) {
  const auto names_a_dtype = [](const Entry& entry) {
    return is_lower(*entry.list) || entry.list == Action::Fp32;
  };
  return one.modules.empty() && !(names_a_dtype(one) && names_a_dtype(other));
}

std::vector<DType> in_order(const std::vector<DType>& low_dtypes) {
  if (low_dtypes.empty() || !std::all_of(low_dtypes.begin(), low_dtypes.end(), may_be_low))
    throw std::invalid_argument("the low dtypes of a policy must be float16, bfloat16 or both");
  std::vector<DType> out;
  for (const DType low : kLowDTypes) {
    if (std::find(low_dtypes.begin(), low_dtypes.end(), low) != low_dtypes.end())
      out.push_back(low);
  }
  return out;
}

constexpr std::array kRests = {Action::FirstInput, Action::Fp32, Action::Inputs};

// The place of an entry in the order in which the lists are asked: those with a condition come
// first, and of these and of the others the error list.
std::pair<bool, int> asked(const Entry& entry) {
  return {entry.low == DType::Other,
          entry.list == Action::Error ? -1 : static_cast<int>(*entry.list)};
}

// The text of settings and lists.

[[noreturn]] void refuse_text(const std::string& why) {
  throw std::invalid_argument("not the text of a policy: " + why);
}

std::string setting_text(const std::string& name) { return name; }
std::string setting_text(DType low_dtype) { return dtype_name(low_dtype); }
std::string setting_text(Action rest) { return action_name(rest); }
std::string setting_text(Compiled compiled) { return compiled_name(compiled); }
std::string setting_text(bool cache) { return cache ? "true" : "false"; }

// The texts of values, with commas between them.
template <typename Values, typename Text>
std::string joined(const Values& values, const Text& text) {
  std::string out;
  for (const auto& value : values) {
    const std::string one = text(value);
    if (!one.empty()) out += (out.empty() ? "" : ",") + one;
  }
  return out;
}

std::string setting_text(const std::vector<DType>& low_dtypes) {
  return joined(low_dtypes, dtype_name);
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) parts.push_back(text);  // a comma at the end: nothing follows it
  }
  return parts;
}

void read_setting(std::string_view text, bool& on) {
  if (text != "true" && text != "false") refuse_text(quoted(text) + " must be true or false");
  on = text == "true";
}

void read_setting(std::string_view text, std::vector<DType>& low_dtypes) {
  low_dtypes.clear();
  for (const std::string_view name : split(text)) low_dtypes.push_back(low_dtype_named(name));
}

Entry read_listed(std::string_view text, Action list, std::string_view modules = {}) {
  Entry entry = read_entry(text).value_or(Entry{.op = std::string(text)});
  if (!modules.empty()) entry.modules = modules;
  entry.list = list;
  return entry;
}

Entry read_limited(std::string_view text) {
  const std::size_t first = text.find(':'), second = text.rfind(':');
  const auto list = std::ranges::find_if(
      kLists, [&](Action each) { return text.substr(0, first) == action_name(each); });
  if (list == kLists.end() || *list == Action::Error || first == second ||
      second + 1 == text.size()) {
    refuse_text(quoted(text) +
                " is not list:op:modules, where list is lower, fp32, promote, weight_int8 or int8");
  }
  return read_listed(text.substr(first + 1, second - first - 1), *list, text.substr(second + 1));
}

std::string accepted_text() {
  std::string out;
  for_each_field(kPolicySettings, [&](const auto& field) {
    const std::string key = std::string(field.key) + "=";
    out += (field.required ? key : "[" + key + "]") + " ";
  });
  for (const Action list : kLists) {
    const std::string key = std::string(action_name(list)) + "=";
    out += (is_optional(list) ? "[" + key + "]" : key) + " ";
  }
  return out + "[limited=]";
}

bool begins_with(std::string_view text, std::string_view key) {
  return text.starts_with(key) && text.substr(key.size()).starts_with('=');
}

// The value of `key=`, which must come next in the text.
std::string_view take_field(std::string_view& text, std::string_view key) {
  const std::size_t end = text.find(' ');
  const std::string_view field = text.substr(0, end);
  if (!begins_with(field, key)) {
    refuse_text("'" + std::string(key) + "=' expected, found " + quoted(field.substr(0, 40)) +
                "; accepted: " + accepted_text());
  }
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return field.substr(key.size() + 1);
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

void read_setting(std::string_view text, std::string& name) { name = text; }

void read_setting(std::string_view text, DType& low_dtype) {
  low_dtype = dtype_named(text);
  if (low_dtype == DType::Other) {
    throw std::invalid_argument(quoted(text) +
                                " is not a dtype of a policy. bfloat16 or float16 is accepted");
  }
}

void read_setting(std::string_view text, Action& rest) {
  const auto found =
      std::ranges::find_if(kRests, [&](Action each) { return text == action_name(each); });
  if (found == kRests.end()) {
    throw std::invalid_argument(
        quoted(text) + " is not a rest of a policy. first_input, fp32 or inputs is accepted");
  }
  rest = *found;
}

void read_setting(std::string_view text, Compiled& compiled) {
  const auto* found = std::ranges::find(kCompiledNames, text);
  if (found == kCompiledNames.end()) {
    throw std::invalid_argument(quoted(text) +
                                " is not a setting of compiled code. exact or fused is accepted");
  }
  compiled = static_cast<Compiled>(found - kCompiledNames.begin());
}

std::string problem_of(const Entry& entry) {
  if (!read_entry(entry.op)) return quoted(entry.op) + kConditionRefused;
  if (!is_op_name(entry.op))
    return quoted(entry.op) + " is not an op name. Letters, digits, _ and one dot are accepted";
  if (entry.list && is_int8(*entry.list)) {
    const auto accepted = int8_ops(*entry.list);
    if (std::ranges::find(accepted, base_name(entry.op)) == accepted.end()) {
      std::string why = quoted(written(entry)) + " cannot be in the " + action_name(*entry.list) +
                        " list. Accepted are ";
      for (const std::string_view op : accepted) why.append(op).append(", ");
      return why.substr(0, why.size() - 2);
    }
  }
  if (entry.modules.empty()) return "";
  if (!is_module_pattern(entry.modules)) return quoted(entry.modules) + kModulesRefused;
  if (entry.list != Action::Error) return "";
  return quoted(written(entry)) +
         " is limited to modules. Here the name must hold for the whole model";
}

std::vector<Conflict> conflicts_of(std::vector<Entry> entries) {
  entries = sorted(std::move(entries));
  std::vector<Conflict> found;
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const Entry &one = entries[i - 1], &other = entries[i];
    const bool differ =
        std::tie(one.modules, one.op, one.low) != std::tie(other.modules, other.op, other.low);
    if (differ || may_both_be(one, other)) continue;
    const auto in = [](const Entry& entry) {
      const std::string where = place(entry);
      return std::string(action_name(*entry.list)) + " list" +
             (where.empty() ? "" : " (" + where + ")");
    };
    found.push_back({other, quoted(written(one)) + " is in the " + in(one) + " and in the " +
                                in(other) + ". " + (one.modules.empty() ? "An op" : "It") +
                                " can be in only one of them"});
  }
  return found;
}

Policy::Policy(PolicyFields fields) : fields_(std::move(fields)), hash_(0) {
  if (!is_policy_name(name())) {
    throw std::invalid_argument(
        quoted(name()) + " is not a policy name. Up to 64 letters, digits, _ - + . are accepted");
  }
  if (!may_be_low(low())) {
    throw std::invalid_argument(
        std::string("the low dtype of a policy must be float16 or bfloat16, not ") +
        dtype_name(low()));
  }
  if (std::ranges::find(kRests, rest()) == kRests.end())
    throw std::invalid_argument("the rest of a policy must be first_input, fp32 or inputs");
  fields_.low_dtypes = in_order(fields_.low_dtypes);
  for (const Entry& entry : entries()) {
    const std::string problem = problem_of(entry), where = place(entry);
    if (!problem.empty())
      throw std::invalid_argument((where.empty() ? "" : where + ": ") + problem);
  }
  fields_.entries = sorted(std::move(fields_.entries));
  if (const auto conflicts = conflicts_of(entries()); !conflicts.empty())
    throw std::invalid_argument(conflicts.front().why);

  std::set<std::string_view> conditional;
  for (const Entry& entry : entries()) {
    if (entry.modules.empty() && entry.low == low()) conditional.insert(entry.op);
  }
  for (const Entry& entry : entries()) {
    const bool gives_way =
        entry.low == DType::Other ? conditional.contains(base_name(entry.op)) : entry.low != low();
    if (entry.modules.empty() && !gives_way) deciding_.push_back(entry);
  }
  hash_ = fnv1a(rules_text());
}

Policy Policy::parse(std::string_view text) {
  PolicyFields read;
  for_each_field(kPolicySettings, [&](const auto& field) {
    if (field.required || begins_with(text, field.key))
      read_setting(take_field(text, field.key), read.*field.member);
  });
  for (const Action list : kLists) {
    if (is_optional(list) && !begins_with(text, action_name(list))) continue;
    for (const std::string_view name : split(take_field(text, action_name(list))))
      read.entries.push_back(read_listed(name, list));
  }
  if (begins_with(text, "limited")) {
    for (const std::string_view each : split(take_field(text, "limited")))
      read.entries.push_back(read_limited(each));
  }
  if (!text.empty()) refuse_text("there is text after the last field");
  return Policy(std::move(read));
}

Resolution Policy::first_listed(const std::vector<std::vector<std::string>>& levels,
                                bool overloads) const {
  for (const std::vector<std::string>& level : levels) {
    const Entry* first = nullptr;
    for (const std::string_view name : level) {
      // Overloads come right behind a name, as '.' sorts before every other character of one.
      const auto is_named = [&](const Entry& entry) {
        return entry.op == name || (overloads && base_name(entry.op) == name);
      };
      for (auto each = std::ranges::lower_bound(deciding_, name, {}, &Entry::op);
           each != deciding_.end() && is_named(*each); ++each) {
        if (first == nullptr || asked(*each) < asked(*first)) first = &*each;
      }
    }
    if (first != nullptr) return {{*first->list, low(), true}, *first};
  }
  return {{Action::Inputs, low(), false}, {}};
}

Resolution Policy::resolve(std::string_view home_name) const {
  if (home_name.find('.') != std::string_view::npos) {
    if (Resolution found = first_listed({{std::string(home_name)}}); found.entry) return found;
  }
  const NamesOfHome names = names_of_home(base_name(home_name));
  Resolution found = first_listed(names.spellings, true);
  for (const std::string& reached : names.reached) {
    if (!found.entry) found = first_listed({{reached}});
  }
  if (!found.entry) found.rule.action = rest();
  return found;
}

Resolution Policy::resolve_overload(std::string_view overload) const {
  Resolution found = first_listed({{std::string(overload)}});
  return found.entry ? found : first_listed(dispatched_candidates(base_name(overload)));
}

std::string Policy::rule_text(const Resolution& found) const {
  const Action action = found.rule.action;
  if (!found.entry && action == Action::Promote)
    return "refuses mixed dtypes: promote";  // Policy::resolve never says so; D41
  if (!found.entry) return std::string("rest: ") + action_name(action);
  const std::string where = place(*found.entry);
  return std::string(action_name(action)) + ": " + written(*found.entry) + ", " +
         (where.empty() ? name() : where);
}

std::string Policy::text() const {
  std::string out;
  const PolicyFields defaults;
  for_each_field(kPolicySettings, [&](const auto& field) {
    const auto& value = fields_.*field.member;
    if (field.required || value != defaults.*field.member)
      out += std::string(field.key) + "=" + setting_text(value) + " ";
  });
  for (const Action list : kLists) {
    const std::string names = joined(entries(), [&](const Entry& entry) {
      return entry.modules.empty() && entry.list == list ? written(entry) : "";
    });
    if (names.empty() && is_optional(list)) continue;
    out += std::string(action_name(list)) + "=" + names + (list == kLists.back() ? "" : " ");
  }
  const std::string limited = joined(entries(), [](const Entry& entry) {
    if (entry.modules.empty()) return std::string();
    return std::string(action_name(*entry.list)) + ":" +
           written({.op = entry.op, .low = entry.low}) + ":" + entry.modules;
  });
  return out + (limited.empty() ? "" : " limited=" + limited);
}

std::string Policy::rules_text() const {
  const std::string whole = text();
  return whole.substr(whole.find(' ') + 1);
}

bool operator==(const Policy& a, const Policy& b) {
  return &a == &b || (a.hash_ == b.hash_ && a.rules_text() == b.rules_text());
}

}  // namespace habana_mp
