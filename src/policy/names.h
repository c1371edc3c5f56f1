// Which names of a list speak of an op. Knows torch's spellings of one operation (operators,
// aliases, names that only C++ code uses) as data; it must not know Python, torch or policies.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace habana_mp {

// Of torch's own names for what lies in torch.linalg, torch.fft and torch.special: linalg_inv.
inline constexpr std::array<std::string_view, 3> kModulePrefixes = {"linalg_", "fft_", "special_"};

// Names that may carry the rule of a home of an op: levels of spellings, most specific first, and
// the names of what it reaches inside, a caller before what it calls (D16, D17). The names of one
// level are as good as each other.
struct NamesOfHome {
  std::vector<std::vector<std::string>> spellings;
  std::vector<std::string> reached;
};

// home_name is the attribute under which the home is found: "mm", "__matmul__", "__rsub__",
// "relu_", "linear", "nll_loss_nd", "linalg_solve", "fft_fft", "special_softmax", "lstm". A
// spelling in a list stands for every overload of the op, so none has a dot here. A reached op
// stands for the home by its whole name alone: which overload a call reaches is not known.
NamesOfHome names_of_home(std::string_view home_name);

// The same as levels, with one for each name that is reached at the end.
std::vector<std::vector<std::string>> candidates(std::string_view home_name);

// The same for an op of the dispatcher ("mm", "linalg_inv", without its overload). What only other
// ops reach from inside is asked by its own name there, so no name stands for it.
std::vector<std::vector<std::string>> dispatched_candidates(std::string_view op);

}  // namespace habana_mp
