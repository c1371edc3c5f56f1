// Policy: a frozen value that says in which precision every op runs: a name, a low dtype, lists of
// ops and what happens to the rest. It must not know Python, torch, or where its lists came from
// beyond the place kept with each entry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "policy/decide.h"
#include "policy/dtype.h"
#include "policy/op_list.h"

namespace habana_mp {

// How compiled code rounds (D55): where the lists say, as code that is not compiled does, or where
// the compiler keeps the casts of a fused kernel.
enum class Compiled { Exact, Fused };
inline constexpr std::array kCompiledNames = {"exact", "fused"};
constexpr const char* compiled_name(Compiled compiled) {
  return kCompiledNames[static_cast<std::size_t>(compiled)];
}

// What a policy is made of. Required fields have a default that a policy refuses.
struct PolicyFields {
  std::string name = {};
  DType low_dtype = DType::Other;
  // The low dtypes that it is meant for, which autocast keeps to (D29); low_dtype need not be one.
  std::vector<DType> low_dtypes = {std::begin(kLowDTypes), std::end(kLowDTypes)};
  Action rest = Action::Error;
  bool cache = true;  // casts of weights may be kept
  Compiled compiled = Compiled::Exact;
  std::vector<Entry> entries = {};
};

// Every setting once, in the order of the text; the entries follow. Text, Python's arguments and
// properties, pickles, policy.toml and the differences of two policies come from here.
inline constexpr std::tuple kPolicySettings = {
    Field{"name", &PolicyFields::name, true},
    Field{"low_dtype", &PolicyFields::low_dtype, true},
    Field{"low_dtypes", &PolicyFields::low_dtypes},
    Field{"rest", &PolicyFields::rest, true},
    Field{"cache", &PolicyFields::cache},
    Field{"compiled", &PolicyFields::compiled},
};

template <typename Fields, typename Visit>
constexpr void for_each_field(const Fields& fields, const Visit& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, fields);
}

// The value of a setting, of its text. Throws std::invalid_argument.
void read_setting(std::string_view text, std::string& name);
void read_setting(std::string_view text, DType& low_dtype);
void read_setting(std::string_view text, Action& rest);
void read_setting(std::string_view text, Compiled& compiled);

struct Resolution {
  Rule rule;
  std::optional<Entry> entry;  // none where the rest of the policy decides
};

// Why no policy takes the entry, without its place; empty where one does.
std::string problem_of(const Entry& entry);

// An entry that is in two lists which cannot both have it (D23).
struct Conflict {
  Entry entry;  // the later one
  std::string why;
};

std::vector<Conflict> conflicts_of(std::vector<Entry> entries);

class Policy {
 public:
  // Entries are kept sorted, a double keeps its first place. Throws std::invalid_argument: a name
  // that is no op name, a low dtype that is not float16 or bfloat16, a rest that is not FirstInput,
  // Fp32 or Inputs, an op in two of the lists lower, weight_int8, int8 and fp32 (D23) with the same
  // condition and for the same modules, an op in a list for 8 bits that has no such weight (D56).
  explicit Policy(PolicyFields fields);

  // Reads what text() wrote. Throws std::invalid_argument.
  static Policy parse(std::string_view text);

  const PolicyFields& fields() const { return fields_; }
  const std::string& name() const { return fields_.name; }
  DType low() const { return fields_.low_dtype; }
  Action rest() const { return fields_.rest; }
  bool cached() const { return fields_.cache; }
  // As given, whatever the low dtype is. One with modules decides nothing here: inside of such a
  // module another policy is in force, which has it for the whole model.
  const std::vector<Entry>& entries() const { return fields_.entries; }

  // The rule of a home of an op (names.h says what a home name is). The most specific level of
  // names that any list has decides; inside a level the entries that have a condition come first,
  // and of these and of the others error, lower, weight_int8, int8, fp32, promote in this order. A
  // listed overload stands for the whole op, but not for what reaches it inside (D17); asked for by
  // its full name it is looked up as such first, but a condition of the whole op comes before
  // overloads that have none.
  Resolution resolve(std::string_view home_name) const;

  // The rule of one overload of an op of the dispatcher: "mm", "pow.Tensor_Scalar". Here a listed
  // overload stands for itself alone (D17), and comes before the name of the whole op.
  Resolution resolve_overload(std::string_view overload) const;

  // A rule as the log, the report and errors show it: "lower: mm, lists/my.txt:3", with the name of
  // the policy where there is no file, and "rest: first_input".
  std::string rule_text(const Resolution& found) const;

  // One line: "name=hmp low_dtype=bfloat16 rest=first_input lower=addmm,bmm fp32= promote= error=".
  // Settings that need not be given are there where they are not the default, and entries for some
  // modules as "limited=fp32:mul:*.rotary_emb" at the end.
  std::string text() const;

  // The same in every process and on every machine. Equality and hash see all but the name, and the
  // places and comments of entries, which change no cast.
  std::uint64_t hash() const { return hash_; }
  friend bool operator==(const Policy& a, const Policy& b);

 private:
  std::string rules_text() const;
  // The entry of the first level of names that any list has. With overloads those of a name count,
  // too.
  Resolution first_listed(const std::vector<std::vector<std::string>>& levels,
                          bool overloads = false) const;

  PolicyFields fields_;
  // The entries that `resolve` reads: for the whole model, and for any low dtype or this one. An op
  // that has an entry for this low dtype has none for any.
  std::vector<Entry> deciding_;
  std::uint64_t hash_;
};

}  // namespace habana_mp
