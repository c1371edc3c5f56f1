// Reads the text of one list file: one op name a line (D20), or edits of a default list (D21).
// Knows the form of a name and nothing else: not which ops exist, and no Python or torch.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace habana_mp {

inline constexpr std::size_t kMaxListBytes = 1u << 20;
inline constexpr std::size_t kMaxLineCharacters = 256;

// what() is "path:line: reason"; pybind11 turns it into ValueError.
struct ListError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct ListedOp {
  std::string name;
  int line;      // counted from 1
  bool removed;  // "-name", in a list of edits only

  friend bool operator==(const ListedOp&, const ListedOp&) = default;
};

struct OpList {
  std::string path;
  std::vector<ListedOp> ops;  // in the order of the file, doubles kept
  bool edits = false;         // every name began with + or -: the list edits a default (D21)
};

// Letters, digits, _ and one dot between a name and its overload (pow.Tensor_Scalar).
bool is_op_name(std::string_view text);

// The name without its overload: "pow" of "pow.Tensor_Scalar".
std::string_view base_name(std::string_view name);

OpList parse_op_list(std::string_view text, const std::string& path);

}  // namespace habana_mp
