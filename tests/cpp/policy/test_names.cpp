// candidates(): which names of a list speak of a home of an op (D16, D17).
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "policy/names.h"

using namespace habana_mp;

namespace {

// "mm" or "a b | c": levels apart by " | ".
std::string shown(std::string_view home) {
  std::string out;
  for (const auto& level : candidates(home)) {
    if (!out.empty()) out += " | ";
    for (std::size_t i = 0; i < level.size(); ++i) out += (i ? " " : "") + level[i];
  }
  return out;
}

struct Case {
  const char* home;
  const char* levels;
};

const std::vector<Case> kCases = {
    {"mm", "mm"},
    {"matmul", "matmul | __matmul__ | linalg_matmul"},
    {"__matmul__", "__matmul__ | matmul | linalg_matmul"},
    {"__rmatmul__", "__rmatmul__ | rmatmul | __matmul__ matmul | linalg_matmul"},
    // torch's own aliases
    {"mul", "mul | __mul__ | multiply"},
    {"multiply", "multiply | mul __mul__"},
    {"div", "div | __div__ | divide true_divide truediv __truediv__"},
    {"__truediv__", "__truediv__ | truediv | div | __div__ | divide true_divide"},
    {"cat", "cat | concat concatenate"},
    {"arccos", "arccos | acos"},
    {"clip", "clip | clamp"},
    {"greater", "greater | gt __gt__"},
    {"__gt__", "__gt__ | gt | greater"},
    {"__mod__", "__mod__ | mod | remainder"},
    // reflected: rsub if it is named, else sub; 1/x is one function under two names
    {"__rsub__", "__rsub__ | rsub | __sub__ sub | subtract"},
    {"rsub", "rsub | __rsub__ | __sub__ sub | subtract"},
    {"__rtruediv__",
     "__rtruediv__ | rtruediv | __rdiv__ rdiv | __truediv__ truediv | div | __div__ | divide "
     "true_divide"},
    {"__rpow__", "__rpow__ | rpow | __pow__ pow"},
    // in place: what makes a new tensor comes last
    {"relu_", "relu_ | relu"},
    {"add_", "add_ | iadd __iadd__ | add | __add__"},
    {"__iadd__", "__iadd__ | iadd | add_ | add | __add__"},
    {"iadd", "iadd | __iadd__ | add_ | add | __add__"},
    {"clip_", "clip_ | clamp_ | clip | clamp"},
    // modules
    {"linalg_solve", "linalg_solve | solve"},
    {"fft_fft", "fft_fft | fft"},
    {"special_softmax", "special_softmax | softmax | _softmax"},
    {"linalg_inv", "linalg_inv | inverse inv"},
    {"inverse", "inverse | inv linalg_inv"},
    {"linalg_matmul", "linalg_matmul | matmul __matmul__"},
    {"det", "det | linalg_det"},
    {"linalg_det", "linalg_det | det"},
    {"exp2_", "exp2_ | special_exp2_ | exp2 | special_exp2"},
    {"special_psi", "special_psi | digamma psi special_digamma"},
    {"softmax", "softmax | special_softmax | _softmax"},
    {"cross", "cross"},  // linalg.cross takes another dimension (F271)
    {"linalg_multi_dot", "linalg_multi_dot | multi_dot"},
    // names that lists take from modules
    {"gru_cell", "gru_cell | GRUCell | _thnn_fused_gru_cell"},
    {"rnn_relu_cell", "rnn_relu_cell | RNNCell"},
    {"RNNCell", "RNNCell | rnn_tanh_cell rnn_relu_cell"},
    // D17: names that only C++ code calls
    {"cross_entropy", "cross_entropy | cross_entropy_loss"},
    {"nll_loss_nd", "nll_loss_nd | nll_loss | nll_loss2d | nll_loss_forward | nll_loss2d_forward"},
    {"multilabel_margin_loss", "multilabel_margin_loss | multilabel_margin_loss_forward"},
    {"grid_sample",
     "grid_sample | grid_sampler | grid_sampler_2d | grid_sampler_3d | "
     "_grid_sampler_2d_cpu_fallback"},
    {"dropout2d", "dropout2d | feature_dropout"},
    // no operators: names of torch that look like one
    {"rand", "rand"},
    {"round", "round | special_round"},
    {"index_add_", "index_add_ | index_add"},
    {"", ""},
};

bool has(std::string_view home, std::string_view name) {
  const auto levels = candidates(home);
  return std::any_of(levels.begin(), levels.end(), [name](const auto& level) {
    return std::find(level.begin(), level.end(), name) != level.end();
  });
}

}  // namespace

TEST_CASE("candidates: levels of names (D16, D17)") {
  for (const Case& c : kCases) {
    SUBCASE(c.home) { CHECK(shown(c.home) == c.levels); }
  }
}

TEST_CASE("candidates: no name comes twice, and the home's own comes first") {
  for (const Case& c : kCases) {
    std::set<std::string> seen;
    const auto levels = candidates(c.home);
    if (!levels.empty()) CHECK(levels.front() == std::vector<std::string>{c.home});
    for (const auto& level : levels) {
      CHECK_FALSE(level.empty());
      for (const std::string& name : level) CHECK(seen.insert(name).second);
    }
  }
}

TEST_CASE("candidates: convolutions are reached under C++ names (D17)") {
  for (const char* home :
       {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}) {
    CHECK(has(home, "convolution"));
    CHECK(has(home, "_convolution"));
    CHECK_FALSE(has(home, "mm"));
  }
}

TEST_CASE("candidates: a reflected operator does not speak for the plain op") {
  CHECK_FALSE(has("div", "__rtruediv__"));
  CHECK_FALSE(has("sub", "rsub"));
  CHECK_FALSE(has("pow", "__rpow__"));
}
