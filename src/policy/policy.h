// Policy: a frozen value that says in which precision every op runs: a name, a low dtype, lists of
// ops and what happens to the rest. It must not know Python, torch, or where its lists came from
// beyond the file and line kept with each name.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/decide.h"
#include "policy/dtype.h"

namespace habana_mp {

// Where a name was listed. Both empty (0) for a name given in code.
struct Origin {
  std::string file;
  int line = 0;
};

struct ListedName {
  std::string name;
  Origin origin;
  DType low = DType::Other;  // the condition: the low dtype that it is said of; Other: of any

  std::string written() const;  // "layer_norm@float16"
};

// What written() gave. Throws std::invalid_argument where no low dtype stands behind an @.
ListedName read_listed(std::string_view written, Origin origin);

// A name that is listed for the modules of a model whose paths a pattern matches, and for all that
// is inside of them. It decides nothing here: inside of such a module another policy is in force,
// which has it in its lists.
struct LimitedName {
  Action action;  // of the list that it is in: Lower, Fp32 or Promote
  ListedName listed;
  std::string modules;
};

struct Lists {
  std::vector<ListedName> lower, fp32, promote, error;
};

struct Resolution {
  Rule rule;
  std::string listed_as;  // the entry as written; empty where the rest of the policy decides
  Origin origin;
};

class Policy {
 public:
  // Lists are kept sorted, a double keeps its first place. Throws std::invalid_argument: a name
  // that is no op name, a low dtype that is not float16 or bfloat16, a rest that is not FirstInput,
  // Fp32 or Inputs, an op in both the lower and the fp32 list (D23) with the same condition and for
  // the same modules.
  Policy(std::string name, DType low, Action rest, Lists lists,
         std::vector<DType> low_dtypes = {std::begin(kLowDTypes), std::end(kLowDTypes)},
         bool cached = true, std::vector<LimitedName> limited = {});

  // Reads what text() wrote. Throws std::invalid_argument.
  static Policy parse(std::string_view text);

  const std::string& name() const { return name_; }
  DType low() const { return low_; }
  Action rest() const { return rest_; }
  // As given, whatever the low dtype is.
  const Lists& lists() const { return lists_; }

  const std::vector<LimitedName>& limited() const { return limited_; }

  // The low dtypes that it is meant for, which autocast keeps to (D29), in the order of kLowDTypes;
  // low() need not be one. And whether casts of weights may be kept.
  const std::vector<DType>& low_dtypes() const { return low_dtypes_; }
  bool cached() const { return cached_; }

  // The rule of a home of an op (names.h says what a home name is). The most specific level of
  // names that any list has decides; inside a level the entries that have a condition come first,
  // and of these and of the others error, lower, fp32, promote in this order. A listed overload
  // stands for the whole op, but not for what reaches it inside (D17); asked for by its full name
  // it is looked up as such first, but a condition of the whole op comes before overloads that have
  // none.
  Resolution resolve(std::string_view home_name) const;

  // The rule of one overload of an op of the dispatcher: "mm", "pow.Tensor_Scalar". Here a listed
  // overload stands for itself alone (D17), and comes before the name of the whole op.
  Resolution resolve_overload(std::string_view overload) const;

  // A rule as the log, the report and errors show it: "lower: mm, lists/my.txt:3", with the name of
  // the policy where there is no file, and "rest: first_input".
  std::string rule_text(const Resolution& found) const;

  // One line: "name=hmp low_dtype=bfloat16 rest=first_input lower=addmm,bmm fp32= promote= error=".
  // Where they are not the default "low_dtypes=bfloat16" stands before rest, "cache=false" behind,
  // and "limited=fp32:mul:*.rotary_emb" at the end.
  std::string text() const;

  // The same in every process and on every machine. Equality and hash see all but the name and the
  // origins, which change no cast.
  std::uint64_t hash() const { return hash_; }
  friend bool operator==(const Policy& a, const Policy& b);

 private:
  std::string rules_text() const;
  void sort_out();  // fills conditional_ and plain_
  // The rule of the first name of the first level that any list has; `find` looks into one list.
  template <typename Find>
  std::optional<Resolution> first_listed(const std::vector<std::vector<std::string>>& levels,
                                         const Find& find) const;

  std::string name_;
  DType low_;
  Action rest_;
  Lists lists_;
  std::vector<DType> low_dtypes_;
  bool cached_;
  std::vector<LimitedName> limited_;
  // The entries that hold for low_, and those that have no condition, less the ones that give way.
  Lists conditional_, plain_;
  std::uint64_t hash_;
};

}  // namespace habana_mp
