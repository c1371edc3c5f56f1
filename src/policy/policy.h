// Policy: a frozen value that says in which precision every op runs: a name, a low dtype, lists of
// ops and what happens to the rest. It must not know Python, torch, or where its lists came from
// beyond the file and line kept with each name.
#pragma once

#include <cstdint>
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
};

struct Lists {
  std::vector<ListedName> lower, fp32, promote, error;
};

struct Resolution {
  Rule rule;
  std::string listed_as;  // the name in the list; empty where the rest of the policy decides
  Origin origin;
};

class Policy {
 public:
  // Lists are kept sorted, a double keeps its first place. Throws std::invalid_argument: a name
  // that is no op name, a low dtype that is not float16 or bfloat16, a rest that is not FirstInput,
  // Fp32 or Inputs, an op in both the lower and the fp32 list (D23).
  Policy(std::string name, DType low, Action rest, Lists lists);

  // Reads what text() wrote. Throws std::invalid_argument.
  static Policy parse(std::string_view text);

  const std::string& name() const { return name_; }
  DType low() const { return low_; }
  Action rest() const { return rest_; }
  const Lists& lists() const { return lists_; }

  // The rule of a home of an op (names.h says what a home name is). The most specific level of
  // names that any list has decides; inside a level error, lower, fp32, promote in this order. A
  // listed overload stands for the whole op (D17); asked for by its full name it is looked up as
  // such first.
  Resolution resolve(std::string_view home_name) const;

  // The rule of one overload of an op of the dispatcher: "mm", "pow.Tensor_Scalar". Here a listed
  // overload stands for itself alone (D17), and comes before the name of the whole op.
  Resolution resolve_overload(std::string_view overload) const;

  // One line: "name=hmp low_dtype=bfloat16 rest=first_input lower=addmm,bmm fp32= promote= error=".
  std::string text() const;

  // The same in every process and on every machine. Equality and hash see low dtype, rest and
  // lists; not the name and the origins, which change no cast.
  std::uint64_t hash() const { return hash_; }
  friend bool operator==(const Policy& a, const Policy& b);

 private:
  std::string rules_text() const;
  // The rule of the first name of the first level that any list has; `find` looks into one list.
  template <typename Find>
  std::optional<Resolution> first_listed(const std::vector<std::vector<std::string>>& levels,
                                         const Find& find) const;

  std::string name_;
  DType low_;
  Action rest_;
  Lists lists_;
  std::uint64_t hash_;
};

}  // namespace habana_mp
