// Reads the text of one list file: one entry a line (D20), or edits of a default list (D21).
// Knows the form of an entry and nothing else: not which ops exist, and no Python or torch.
#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "policy/dtype.h"

namespace habana_mp {

inline constexpr std::size_t kMaxListBytes = 1u << 20;
inline constexpr std::size_t kMaxLineCharacters = 256;

// what() is "path:line: reason"; pybind11 turns it into ValueError.
struct ListError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct ListedOp {
  std::string name;  // as written: with its condition and its modules, if it has any
  int line;          // counted from 1
  bool removed;      // "-name", in a list of edits only

  friend bool operator==(const ListedOp&, const ListedOp&) = default;
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

// What a list says: an op, behind @ the low dtype of the policies that it is said of, its
// condition: "layer_norm@float16"; and behind "in" the modules that it is limited to: "mul in
// *.rotary_emb".
struct Entry {
  std::string_view op;
  DType low = DType::Other;       // Other: no condition, it is said of all
  std::string_view modules = {};  // a pattern of paths; empty: it is said of all
};

// Letters, digits, _, -, * and dots, none of which stands first, last or beside another.
bool is_module_pattern(std::string_view text);

inline constexpr char kModulesRefused[] =
    " is not a pattern of modules. Accepted are names of modules with dots between them, * for any "
    "characters but a dot, ** for any";

inline constexpr char kConditionRefused[] =
    " is not an entry of a list. After @, float16 or bfloat16 is accepted";

// None where something else stands behind the @. The op may be no op name.
std::optional<Entry> read_entry(std::string_view text);

// The same with the dtype by its full name: "layer_norm@float16" of "layer_norm@fp16".
std::string written(const Entry& entry);

// Whether the op is an op name, and the modules are a pattern, too.
bool is_entry(std::string_view text);

OpList parse_op_list(std::string_view text, const std::string& path);

}  // namespace habana_mp
