// Entries of lists, and the text of a list file: one entry a line (D20), or edits of a default list
// (D21). The one place that reads an entry. Knows its form and nothing else: not which ops exist,
// and no Python or torch.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "policy/decide.h"
#include "policy/dtype.h"

namespace habana_mp {

inline constexpr std::size_t kMaxListBytes = 1u << 20;
inline constexpr std::size_t kMaxLineCharacters = 256;

// The lists, in the order of their text. Each but the error list has a file, and may have entries
// for some modules. _core.LISTS names these.
inline constexpr std::array kLists = {Action::Lower,      Action::Fp32, Action::Promote,
                                      Action::WeightInt8, Action::Int8, Action::Error};

// Lists that came later: neither a folder nor the text of a policy needs them.
// _core.OPTIONAL_LISTS.
constexpr bool is_optional(Action list) { return is_int8(list); }

// A field of a value that Python sees, too.
template <typename Owner, typename T>
struct Field {
  const char* key;
  T Owner::* member;
  bool required = false;
};
// clang before 17, which make fuzz may have, deduces the arguments of no aggregate.
template <typename Owner, typename T>
Field(const char*, T Owner::*, bool = false) -> Field<Owner, T>;

// What a list says of an op, and where.
struct Entry {
  std::string op = {};       // with its overload, if it is said of that alone: pow.Tensor_Scalar
  DType low = DType::Other;  // the low dtype of the policies that it is said of; Other: of any
  std::string modules = {};  // a pattern of the paths of modules; empty: the whole model
  std::optional<Action> list = {};  // none: not known yet, or all, of an edit that takes out
  std::string file = {};            // empty, and 0 as the line, where it was given in code
  int line = 0;
  std::string comment = {};  // what stands behind it in the line

  // A place and a comment change no cast.
  auto deciding() const { return std::tie(modules, op, low, list); }
  friend bool operator==(const Entry& a, const Entry& b) { return a.deciding() == b.deciding(); }
};

inline constexpr std::tuple kEntryFields = {
    Field{"op", &Entry::op, true},     Field{"low_dtype", &Entry::low},
    Field{"modules", &Entry::modules}, Field{"list", &Entry::list},
    Field{"file", &Entry::file},       Field{"line", &Entry::line},
    Field{"comment", &Entry::comment},
};

// what() is "path:line: reason"; pybind11 turns it into ValueError.
struct ListError : std::invalid_argument {
  ListError(const std::string& path, int line, const std::string& reason)
      : std::invalid_argument(path + ":" + std::to_string(line) + ": " + reason),
        line(line),
        reason(reason) {}

  int line;
  std::string reason;
};

struct ListedOp {
  Entry entry;
  bool removed;  // "-name", in a list of edits only
};

struct OpList {
  std::string path;
  std::vector<ListedOp> ops;  // in the order of the file, doubles kept
  bool edits = false;         // every name began with + or -: the list edits a default (D21)
};

// For messages: a list or a name may hold any bytes, NUL too, and a message is text that one can
// read.
std::string quoted(std::string_view text);

// Letters, digits, _ and one dot between a name and its overload (pow.Tensor_Scalar).
bool is_op_name(std::string_view text);

// The name without its overload: "pow" of "pow.Tensor_Scalar".
std::string_view base_name(std::string_view name);

// Letters, digits, _, -, * and dots, none of which stands first, last or beside another.
bool is_module_pattern(std::string_view text);

inline constexpr char kModulesRefused[] =
    " is not a pattern of modules. Accepted are names of modules with dots between them, * for any "
    "characters but a dot, ** for any";

inline constexpr char kConditionRefused[] =
    " is not an entry of a list. After @, float16 or bfloat16 is accepted";

// Of the text "layer_norm@float16 in encoder.*". None where something else stands behind the @. The
// op may be no op name, and the modules no pattern.
std::optional<Entry> read_entry(std::string_view text);

// The same with the dtype by its full name: "layer_norm@float16" of "layer_norm@fp16".
std::string written(const Entry& entry);

// "lists/my.txt:3"; empty of one that was given in code.
std::string place(const Entry& entry);

// Whether the op is an op name, and the modules are a pattern, too.
bool is_entry(std::string_view text);

// Throws ListError for the first mistake. With `mistakes` it goes on behind the line and appends
// each of them there.
OpList parse_op_list(std::string_view text, const std::string& path,
                     std::optional<Action> list = {}, std::vector<ListError>* mistakes = nullptr);

}  // namespace habana_mp
