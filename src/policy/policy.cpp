// Policy: checks, look-up and text form. See policy.h.
#include "policy/policy.h"

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "policy/names.h"
#include "policy/op_list.h"

namespace habana_mp {
namespace {

using Names = std::vector<ListedName>;

// The lists, in the order in which they are asked.
constexpr std::pair<Action, Names Lists::*> kOrder[] = {
    {Action::Error, &Lists::error},
    {Action::Lower, &Lists::lower},
    {Action::Fp32, &Lists::fp32},
    {Action::Promote, &Lists::promote},
};

std::string place(const Origin& origin) {
  if (origin.file.empty()) return "no file";
  return origin.line > 0 ? origin.file + ":" + std::to_string(origin.line) : origin.file;
}

bool is_policy_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-+.").find(c) != std::string_view::npos;
  });
}

bool before(const ListedName& a, const ListedName& b) {
  return std::tie(a.name, a.low) < std::tie(b.name, b.low);
}

bool same(const ListedName& a, const ListedName& b) { return a.name == b.name && a.low == b.low; }

void check_name(const ListedName& listed) {
  if (!is_op_name(listed.name)) {
    throw std::invalid_argument(place(listed.origin) + ": " + quoted(listed.name) +
                                " is not an op name. Letters, digits, _ and one dot are accepted");
  }
}

void sort_and_check(Names& names) {
  for (const ListedName& listed : names) check_name(listed);
  // Stable: of a double the first place is kept.
  std::stable_sort(names.begin(), names.end(), before);
  names.erase(std::unique(names.begin(), names.end(), same), names.end());
}

Names::const_iterator first_not_below(const Names& names, std::string_view name) {
  return std::lower_bound(
      names.begin(), names.end(), name,
      [](const ListedName& listed, std::string_view key) { return listed.name < key; });
}

// A name itself, or one of its overloads: these come right behind it, as '.' sorts before every
// other character of a name.
const ListedName* find_op(const Names& names, std::string_view name) {
  const auto found = first_not_below(names, name);
  return found != names.end() && base_name(found->name) == name ? &*found : nullptr;
}

const ListedName* find_exact(const Names& names, std::string_view name) {
  const auto found = first_not_below(names, name);
  return found != names.end() && found->name == name ? &*found : nullptr;
}

void check_disjoint(const Names& lower, const Names& fp32) {
  for (const ListedName& listed : lower) {
    const auto other = std::lower_bound(fp32.begin(), fp32.end(), listed, before);
    if (other != fp32.end() && same(*other, listed)) {
      throw std::invalid_argument("'" + listed.written() + "' is in the lower list (" +
                                  place(listed.origin) + ") and in the fp32 list (" +
                                  place(other->origin) + "). An op can be in only one of them");
    }
  }
}

std::string place_of(const LimitedName& limited) { return place(limited.listed.origin); }

void sort_and_check(std::vector<LimitedName>& names) {
  for (const LimitedName& each : names) {
    check_name(each.listed);
    if (!is_module_pattern(each.modules))
      throw std::invalid_argument(place_of(each) + ": " + quoted(each.modules) + kModulesRefused);
  }
  const auto key = [](const LimitedName& each) {
    return std::tie(each.modules, each.listed.name, each.listed.low, each.action);
  };
  std::stable_sort(names.begin(), names.end(),
                   [&](const auto& a, const auto& b) { return key(a) < key(b); });
  names.erase(std::unique(names.begin(), names.end(),
                          [&](const auto& a, const auto& b) { return key(a) == key(b); }),
              names.end());
  for (std::size_t i = 1; i < names.size(); ++i) {
    const LimitedName &one = names[i - 1], &other = names[i];
    if (one.modules == other.modules && same(one.listed, other.listed)) {
      throw std::invalid_argument(quoted(one.listed.written() + " in " + one.modules) +
                                  " is in the " + action_name(one.action) + " list (" +
                                  place_of(one) + ") and in the " + action_name(other.action) +
                                  " list (" + place_of(other) + "). It can be in only one of them");
    }
  }
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

std::string joined(const Names& names) {
  std::string out;
  for (const ListedName& listed : names) {
    if (!out.empty()) out += ',';
    out += listed.written();
  }
  return out;
}

std::string joined(const std::vector<LimitedName>& names) {
  std::string out;
  for (const LimitedName& each : names) {
    if (!out.empty()) out += ',';
    out += std::string(action_name(each.action)) + ":" + each.listed.written() + ":" + each.modules;
  }
  return out;
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

Names read_names(std::string_view text) {
  Names names;
  for (const std::string_view written : split(text)) names.push_back(read_listed(written, {}));
  return names;
}

constexpr std::array kLimitedTo = {Action::Lower, Action::Fp32, Action::Promote};

std::vector<LimitedName> read_limited(std::string_view text) {
  std::vector<LimitedName> names;
  for (const std::string_view one : split(text)) {
    const std::size_t first = one.find(':'), second = one.rfind(':');
    const auto action = std::ranges::find_if(
        kLimitedTo, [&](Action each) { return one.substr(0, first) == action_name(each); });
    if (action == kLimitedTo.end() || first == second) {
      throw std::invalid_argument("not the text of a policy: " + quoted(one) +
                                  " is not list:op:modules, where list is lower, fp32 or promote");
    }
    names.push_back({*action, read_listed(one.substr(first + 1, second - first - 1), {}),
                     std::string(one.substr(second + 1))});
  }
  return names;
}

constexpr std::array kRests = {Action::FirstInput, Action::Fp32, Action::Inputs};

const char* rest_name(Action rest) {
  for (const Action action : kRests) {
    if (action == rest) return action_name(action);
  }
  throw std::invalid_argument("the rest of a policy must be first_input, fp32 or inputs");
}

// The value of `key=`, which must come next in the text.
std::string_view take_field(std::string_view& text, std::string_view key) {
  const std::size_t end = text.find(' ');
  const std::string_view field = text.substr(0, end);
  if (!field.starts_with(key) || field.size() <= key.size() || field[key.size()] != '=') {
    throw std::invalid_argument("not the text of a policy: '" + std::string(key) +
                                "=' expected, found " + quoted(field.substr(0, 40)) +
                                "; accepted: name= low_dtype= [low_dtypes=] rest= [cache=] "
                                "lower= fp32= promote= error= [limited=]");
  }
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return field.substr(key.size() + 1);
}

std::vector<DType> read_low_dtypes(std::string_view text) {
  std::vector<DType> low_dtypes;
  for (const std::string_view name : split(text)) low_dtypes.push_back(low_dtype_named(name));
  return low_dtypes;
}

bool read_cached(std::string_view text) {
  if (text != "true" && text != "false")
    throw std::invalid_argument("not the text of a policy: cache= must be true or false");
  return text == "true";
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

std::string ListedName::written() const { return habana_mp::written({name, low}); }

ListedName read_listed(std::string_view written, Origin origin) {
  const std::optional<Entry> entry = read_entry(written);
  if (!entry) {
    throw std::invalid_argument(place(origin) + ": " + quoted(written) + kConditionRefused);
  }
  if (!entry->modules.empty()) {
    throw std::invalid_argument(
        place(origin) + ": " + quoted(written) +
        " is limited to modules. Here the name must hold for the whole model");
  }
  return {std::string(entry->op), std::move(origin), entry->low};
}

Policy::Policy(std::string name, DType low, Action rest, Lists lists, std::vector<DType> low_dtypes,
               bool cached, std::vector<LimitedName> limited)
    : name_(std::move(name)),
      low_(low),
      rest_(rest),
      lists_(std::move(lists)),
      low_dtypes_(in_order(low_dtypes)),
      cached_(cached),
      limited_(std::move(limited)),
      hash_(0) {
  if (!is_policy_name(name_)) {
    throw std::invalid_argument(
        quoted(name_) + " is not a policy name. Up to 64 letters, digits, _ - + . are accepted");
  }
  if (!may_be_low(low_)) {
    throw std::invalid_argument(
        std::string("the low dtype of a policy must be float16 or bfloat16, not ") +
        dtype_name(low_));
  }
  rest_name(rest_);
  for (const auto& [action, list] : kOrder) sort_and_check(lists_.*list);
  check_disjoint(lists_.lower, lists_.fp32);
  sort_and_check(limited_);
  sort_out();
  hash_ = fnv1a(rules_text());
}

void Policy::sort_out() {
  std::set<std::string_view> conditional_ops;
  for (const auto& [action, list] : kOrder) {
    for (const ListedName& listed : lists_.*list) {
      if (listed.low != low_) continue;
      (conditional_.*list).push_back(listed);
      conditional_ops.insert(listed.name);
    }
  }
  for (const auto& [action, list] : kOrder) {
    for (const ListedName& listed : lists_.*list) {
      if (listed.low == DType::Other && !conditional_ops.contains(base_name(listed.name)))
        (plain_.*list).push_back(listed);
    }
  }
}

Policy Policy::parse(std::string_view text) {
  const std::string name(take_field(text, "name"));
  const DType low = low_dtype_named(take_field(text, "low_dtype"));
  std::vector<DType> low_dtypes = {std::begin(kLowDTypes), std::end(kLowDTypes)};
  if (text.starts_with("low_dtypes=")) low_dtypes = read_low_dtypes(take_field(text, "low_dtypes"));
  const std::string_view rest_text = take_field(text, "rest");
  Action rest = Action::Error;  // the constructor refuses it
  for (const Action action : kRests) {
    if (rest_text == action_name(action)) rest = action;
  }
  const bool cached = !text.starts_with("cache=") || read_cached(take_field(text, "cache"));
  Lists lists;
  lists.lower = read_names(take_field(text, "lower"));
  lists.fp32 = read_names(take_field(text, "fp32"));
  lists.promote = read_names(take_field(text, "promote"));
  lists.error = read_names(take_field(text, "error"));
  std::vector<LimitedName> limited;
  if (text.starts_with("limited=")) limited = read_limited(take_field(text, "limited"));
  if (!text.empty())
    throw std::invalid_argument("not the text of a policy: there is text after the last field");
  return {name, low, rest, std::move(lists), std::move(low_dtypes), cached, std::move(limited)};
}

template <typename Find>
std::optional<Resolution> Policy::first_listed(const std::vector<std::vector<std::string>>& levels,
                                               const Find& find) const {
  for (const std::vector<std::string>& level : levels) {
    for (const Lists* lists : {&conditional_, &plain_}) {
      for (const auto& [action, list] : kOrder) {
        for (const std::string& name : level) {
          if (const ListedName* listed = find(lists->*list, name))
            return Resolution{{action, low_, true}, listed->written(), listed->origin};
        }
      }
    }
  }
  return std::nullopt;
}

Resolution Policy::resolve(std::string_view home_name) const {
  if (home_name.find('.') != std::string_view::npos) {
    if (auto found = first_listed({{std::string(home_name)}}, find_exact)) return *found;
  }
  const NamesOfHome names = names_of_home(base_name(home_name));
  if (auto found = first_listed(names.spellings, find_op)) return *found;
  for (const std::string& reached : names.reached) {
    if (auto found = first_listed({{reached}}, find_exact)) return *found;
  }
  return {{rest_, low_, false}, {}, {}};
}

Resolution Policy::resolve_overload(std::string_view overload) const {
  if (auto found = first_listed({{std::string(overload)}}, find_exact)) return *found;
  if (auto found = first_listed(dispatched_candidates(base_name(overload)), find_exact))
    return *found;
  return {{Action::Inputs, low_, false}, {}, {}};
}

std::string Policy::rules_text() const {
  std::string out = std::string("low_dtype=") + dtype_name(low_);
  if (low_dtypes_.size() < std::size(kLowDTypes))
    out += std::string(" low_dtypes=") + dtype_name(low_dtypes_.front());
  out += std::string(" rest=") + rest_name(rest_);
  if (!cached_) out += " cache=false";
  return out + " lower=" + joined(lists_.lower) + " fp32=" + joined(lists_.fp32) +
         " promote=" + joined(lists_.promote) + " error=" + joined(lists_.error) +
         (limited_.empty() ? "" : " limited=" + joined(limited_));
}

std::string Policy::rule_text(const Resolution& found) const {
  if (!found.rule.listed && found.rule.action == Action::Promote)
    return "refuses mixed dtypes: promote";  // Policy::resolve never says so; D41
  if (!found.rule.listed) return std::string("rest: ") + action_name(found.rule.action);
  const std::string where = found.origin.file.empty() ? name_ : place(found.origin);
  return std::string(action_name(found.rule.action)) + ": " + found.listed_as + ", " + where;
}

std::string Policy::text() const { return "name=" + name_ + " " + rules_text(); }

bool operator==(const Policy& a, const Policy& b) {
  return &a == &b || (a.hash_ == b.hash_ && a.rules_text() == b.rules_text());
}

}  // namespace habana_mp
