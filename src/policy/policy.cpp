// Policy: checks, look-up and text form. See policy.h.
#include "policy/policy.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "policy/names.h"
#include "policy/op_list.h"

namespace habana_mp {
namespace {

using Names = std::vector<ListedName>;

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

void sort_and_check(Names& names) {
  for (const ListedName& listed : names) {
    if (!is_op_name(listed.name)) {
      throw std::invalid_argument(place(listed.origin) + ": '" + listed.name +
                                  "' is no op name: letters, digits, _ and one dot are accepted");
    }
  }
  // Stable: of a double the first place is kept.
  std::stable_sort(names.begin(), names.end(),
                   [](const ListedName& a, const ListedName& b) { return a.name < b.name; });
  const auto same = [](const ListedName& a, const ListedName& b) { return a.name == b.name; };
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
    if (const ListedName* other = find_exact(fp32, listed.name)) {
      throw std::invalid_argument("'" + listed.name + "' is in the lower list (" +
                                  place(listed.origin) + ") and in the fp32 list (" +
                                  place(other->origin) + "); an op can be in one of them only");
    }
  }
}

bool same_names(const Names& a, const Names& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ListedName& x, const ListedName& y) { return x.name == y.name; });
}

std::string joined(const Names& names) {
  std::string out;
  for (const ListedName& listed : names) {
    if (!out.empty()) out += ',';
    out += listed.name;
  }
  return out;
}

Names split(std::string_view text) {
  Names names;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    names.push_back({std::string(text.substr(0, comma)), {}});
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) names.push_back({});  // a comma at the end: no name follows it
  }
  return names;
}

constexpr std::array kRests = {
    std::pair{Action::FirstInput, "first_input"},
    std::pair{Action::Fp32, "fp32"},
    std::pair{Action::Inputs, "inputs"},
};

const char* rest_name(Action rest) {
  for (const auto& [action, name] : kRests) {
    if (action == rest) return name;
  }
  throw std::invalid_argument("the rest of a policy is first_input, fp32 or inputs");
}

// The value of `key=`, which must come next in the text.
std::string_view take_field(std::string_view& text, std::string_view key) {
  const std::size_t end = text.find(' ');
  const std::string_view field = text.substr(0, end);
  if (!field.starts_with(key) || field.size() <= key.size() || field[key.size()] != '=') {
    throw std::invalid_argument("no policy text: '" + std::string(key) + "=' expected, found '" +
                                std::string(field.substr(0, 40)) +
                                "'; accepted: name= low_dtype= rest= lower= fp32= promote= error=");
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

Policy::Policy(std::string name, DType low, Action rest, Lists lists)
    : name_(std::move(name)), low_(low), rest_(rest), lists_(std::move(lists)), hash_(0) {
  if (!is_policy_name(name_)) {
    throw std::invalid_argument(
        "'" + name_ + "' is no policy name: up to 64 letters, digits, _ - + . are accepted");
  }
  if (low_ != DType::Float16 && low_ != DType::BFloat16) {
    throw std::invalid_argument(
        std::string("the low dtype of a policy is float16 or bfloat16, not ") + dtype_name(low_));
  }
  rest_name(rest_);
  for (Names* names : {&lists_.lower, &lists_.fp32, &lists_.promote, &lists_.error})
    sort_and_check(*names);
  check_disjoint(lists_.lower, lists_.fp32);
  hash_ = fnv1a(rules_text());
}

Policy Policy::parse(std::string_view text) {
  const std::string name(take_field(text, "name"));
  const std::string_view low_text = take_field(text, "low_dtype");
  DType low = DType::Other;
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    if (low_text == dtype_name(dtype)) low = dtype;
  }
  const std::string_view rest_text = take_field(text, "rest");
  Action rest = Action::Error;  // the constructor refuses it
  for (const auto& [action, accepted] : kRests) {
    if (rest_text == accepted) rest = action;
  }
  Lists lists;
  lists.lower = split(take_field(text, "lower"));
  lists.fp32 = split(take_field(text, "fp32"));
  lists.promote = split(take_field(text, "promote"));
  lists.error = split(take_field(text, "error"));
  if (!text.empty()) throw std::invalid_argument("no policy text: more follows the field error=");
  return {name, low, rest, std::move(lists)};
}

template <typename Find>
std::optional<Resolution> Policy::first_listed(const std::vector<std::vector<std::string>>& levels,
                                               const Find& find) const {
  const std::array<std::pair<Action, const Names*>, 4> order = {{
      {Action::Error, &lists_.error},
      {Action::Lower, &lists_.lower},
      {Action::Fp32, &lists_.fp32},
      {Action::Promote, &lists_.promote},
  }};
  for (const std::vector<std::string>& level : levels) {
    for (const auto& [action, names] : order) {
      for (const std::string& name : level) {
        if (const ListedName* listed = find(*names, name))
          return Resolution{{action, low_, true}, listed->name, listed->origin};
      }
    }
  }
  return std::nullopt;
}

Resolution Policy::resolve(std::string_view home_name) const {
  if (home_name.find('.') != std::string_view::npos) {
    if (auto found = first_listed({{std::string(home_name)}}, find_exact)) return *found;
  }
  if (auto found = first_listed(candidates(base_name(home_name)), find_op)) return *found;
  return {{rest_, low_, false}, {}, {}};
}

Resolution Policy::resolve_overload(std::string_view overload) const {
  if (auto found = first_listed({{std::string(overload)}}, find_exact)) return *found;
  if (auto found = first_listed(dispatched_candidates(base_name(overload)), find_exact))
    return *found;
  return {{Action::Inputs, low_, false}, {}, {}};
}

std::string Policy::rules_text() const {
  return std::string("low_dtype=") + dtype_name(low_) + " rest=" + rest_name(rest_) +
         " lower=" + joined(lists_.lower) + " fp32=" + joined(lists_.fp32) +
         " promote=" + joined(lists_.promote) + " error=" + joined(lists_.error);
}

std::string Policy::text() const { return "name=" + name_ + " " + rules_text(); }

bool operator==(const Policy& a, const Policy& b) {
  return a.hash_ == b.hash_ && a.low_ == b.low_ && a.rest_ == b.rest_ &&
         same_names(a.lists_.lower, b.lists_.lower) && same_names(a.lists_.fp32, b.lists_.fp32) &&
         same_names(a.lists_.promote, b.lists_.promote) &&
         same_names(a.lists_.error, b.lists_.error);
}

}  // namespace habana_mp
