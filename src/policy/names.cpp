// The spellings of an operation, and the order in which they are asked. See names.h.
#include "policy/names.h"

#include <algorithm>
#include <cstddef>

namespace habana_mp {
namespace {

using Level = std::vector<std::string>;

// The rows of the tables below: as many names as the longest row has, the others empty.
template <std::size_t N>
using Names = std::array<std::string_view, N>;

// Python's operators: the symbol inside the dunder, the op it runs, and whether lists spell its
// reflected and in-place forms without the dunder too (rsub, itruediv). The bitwise ones do not:
// torch.rand is no reflected and.
struct Operator {
  std::string_view symbol, op;
  bool spelled;
};
constexpr std::array kOperators = {
    Operator{"add", "add", true},
    Operator{"sub", "sub", true},
    Operator{"mul", "mul", true},
    Operator{"matmul", "matmul", true},
    Operator{"truediv", "div", true},
    Operator{"div", "div", true},
    Operator{"floordiv", "floor_divide", true},
    Operator{"mod", "remainder", true},
    Operator{"pow", "pow", true},
    Operator{"and", "bitwise_and", false},
    Operator{"or", "bitwise_or", false},
    Operator{"xor", "bitwise_xor", false},
    Operator{"lshift", "bitwise_left_shift", false},
    Operator{"rshift", "bitwise_right_shift", false},
    Operator{"lt", "lt", false},
    Operator{"le", "le", false},
    Operator{"gt", "gt", false},
    Operator{"ge", "ge", false},
    Operator{"eq", "eq", false},
    Operator{"ne", "ne", false},
    Operator{"neg", "neg", false},
    Operator{"pos", "positive", false},
    Operator{"abs", "abs", false},
    Operator{"invert", "bitwise_not", false},
};

// Names that torch has for one operation. Its documentation calls them aliases, or one is the
// Python and one the C++ name of the same call.
constexpr Names<4> kFamilies[] = {
    {"div", "divide", "true_divide", "truediv"},
    {"mul", "multiply"},
    {"sub", "subtract"},
    {"neg", "negative"},
    {"cat", "concat", "concatenate"},
    {"vstack", "row_stack"},
    {"abs", "absolute"},
    {"acos", "arccos"},
    {"acosh", "arccosh"},
    {"asin", "arcsin"},
    {"asinh", "arcsinh"},
    {"atan", "arctan"},
    {"atanh", "arctanh"},
    {"atan2", "arctan2"},
    {"clamp", "clip"},
    {"trunc", "fix"},
    {"gt", "greater"},
    {"ge", "greater_equal"},
    {"lt", "less"},
    {"le", "less_equal"},
    {"ne", "not_equal"},
    {"outer", "ger"},
    {"transpose", "swapaxes", "swapdims"},
    {"movedim", "moveaxis"},
    {"trapezoid", "trapz"},
    {"det", "linalg_det"},
    {"slogdet", "linalg_slogdet"},
    {"matmul", "linalg_matmul"},
    {"matrix_exp", "linalg_matrix_exp"},
    {"matrix_power", "linalg_matrix_power"},
    {"inverse", "inv", "linalg_inv"},
    {"pinverse", "pinv", "linalg_pinv"},
    {"orgqr", "householder_product", "linalg_householder_product"},
    {"erf", "special_erf"},
    {"erfc", "special_erfc"},
    {"erfinv", "special_erfinv"},
    {"exp2", "special_exp2"},
    {"expm1", "special_expm1"},
    {"i0", "special_i0"},
    {"log1p", "special_log1p"},
    {"log_softmax", "special_log_softmax"},
    {"logit", "special_logit"},
    {"logsumexp", "special_logsumexp"},
    {"polygamma", "special_polygamma"},
    {"round", "special_round"},
    {"sinc", "special_sinc"},
    {"softmax", "special_softmax"},
    {"xlogy", "special_xlogy"},
    {"sigmoid", "expit", "special_expit"},
    {"lgamma", "gammaln", "special_gammaln"},
    {"digamma", "psi", "special_digamma", "special_psi"},
    {"igamma", "gammainc", "special_gammainc"},
    {"igammac", "gammaincc", "special_gammaincc"},
    {"mvlgamma", "multigammaln", "special_multigammaln"},
    {"multi_dot", "linalg_multi_dot"},
    {"logsigmoid", "log_sigmoid"},
    {"cross_entropy", "cross_entropy_loss"},
    {"grid_sample", "grid_sampler"},
    {"gru_cell", "GRUCell"},
    {"lstm_cell", "LSTMCell"},
    {"rnn_tanh_cell", "RNNCell"},
    {"rnn_relu_cell", "RNNCell"},
    {"max_pool1d", "max_pool1d_with_indices"},
    {"max_pool2d", "max_pool2d_with_indices"},
    {"max_pool3d", "max_pool3d_with_indices"},
    {"adaptive_max_pool1d", "adaptive_max_pool1d_with_indices"},
    {"adaptive_max_pool2d", "adaptive_max_pool2d_with_indices"},
    {"adaptive_max_pool3d", "adaptive_max_pool3d_with_indices"},
    {"fractional_max_pool2d", "fractional_max_pool2d_with_indices"},
    {"fractional_max_pool3d", "fractional_max_pool3d_with_indices"},
};

// Names that only C++ code calls, by the Python call that reaches them (D17): a name before those
// that it calls.
struct Reached {
  Names<3> homes;
  Names<6> names;
};
constexpr Reached kAttention = {
    {"scaled_dot_product_attention"},
    {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
     "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
     "_scaled_dot_product_attention_math"}};
constexpr Reached kReached[] = {
    {{"conv1d", "conv2d", "conv3d"},
     {"convolution", "_convolution", "_convolution_mode", "mkldnn_convolution", "cudnn_convolution",
      "convolution_overrideable"}},
    {{"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"},
     {"convolution", "_convolution", "cudnn_convolution_transpose", "convolution_overrideable"}},
    {{"convolution"},
     {"_convolution", "mkldnn_convolution", "cudnn_convolution", "cudnn_convolution_transpose",
      "convolution_overrideable"}},
    {{"gru_cell"}, {"_thnn_fused_gru_cell"}},
    {{"lstm_cell"}, {"_thnn_fused_lstm_cell"}},
    {{"batch_norm"}, {"_batch_norm_impl_index", "native_batch_norm", "cudnn_batch_norm"}},
    {{"layer_norm"}, {"native_layer_norm"}},
    {{"group_norm"}, {"native_group_norm"}},
    {{"rms_norm"}, {"_fused_rms_norm"}},
    {{"dropout"}, {"native_dropout"}},
    {{"dropout1d", "dropout2d", "dropout3d"}, {"feature_dropout"}},
    {{"softmax"}, {"_softmax"}},
    {{"log_softmax"}, {"_log_softmax"}},
    {{"nll_loss"}, {"nll_loss_nd", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward"}},
    {{"nll_loss_nd"}, {"nll_loss", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward"}},
    {{"nll_loss2d"}, {"nll_loss2d_forward"}},
    {{"multilabel_margin_loss"}, {"multilabel_margin_loss_forward"}},
    {{"ctc_loss"}, {"_ctc_loss"}},
    {{"cdist"}, {"_cdist_forward"}},
    {{"pdist"}, {"_pdist_forward"}},
    {{"log_sigmoid"}, {"log_sigmoid_forward"}},
    {{"embedding_bag"}, {"_embedding_bag", "_embedding_bag_forward_only"}},
    {{"grid_sampler"}, {"grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback"}},
    {{"grid_sampler_2d"}, {"_grid_sampler_2d_cpu_fallback"}},
    {{"prelu"}, {"_prelu_kernel"}},
    {{"bilinear"}, {"_trilinear"}},
    kAttention,
};

// Ops of the dispatcher that Python calls by another name, which lists have (D17), and attention by
// its kernels: nothing inside it has a rule.
constexpr Reached kCalledAs[] = {
    {{"nll_loss_nd"}, {"nll_loss"}},
    {{"feature_dropout"}, {"dropout1d", "dropout2d", "dropout3d"}},
    kAttention,
};

std::string dunder(std::string_view name) { return "__" + std::string(name) + "__"; }

bool is_dunder(std::string_view name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

const Operator* find_operator(std::string_view symbol) {
  const auto* found = std::ranges::find(kOperators, symbol, &Operator::symbol);
  return found == kOperators.end() ? nullptr : &*found;
}

std::vector<std::string_view> symbols_of(std::string_view op) {
  std::vector<std::string_view> symbols;
  for (const Operator& o : kOperators) {
    if (o.op == op) symbols.push_back(o.symbol);
  }
  return symbols;
}

// Collects levels; a name that an earlier level has is not repeated.
class Levels {
 public:
  void add(const Level& names) {
    Level level;
    for (const std::string& name : names) {
      if (std::ranges::find(seen_, name) != seen_.end()) continue;
      seen_.push_back(name);
      level.push_back(name);
    }
    if (!level.empty()) levels_.push_back(std::move(level));
  }
  const std::vector<std::string>& seen() const { return seen_; }
  std::vector<Level> take() { return std::move(levels_); }

 private:
  std::vector<Level> levels_;
  std::vector<std::string> seen_;
};

Level family_of(std::string_view name) {
  Level family;
  for (const Names<4>& names : kFamilies) {
    if (std::ranges::find(names, name) == names.end()) continue;
    for (const std::string_view other : names) {
      if (other != name && !other.empty()) family.emplace_back(other);
    }
  }
  return family;
}

// An op under its plain name, then its operators, then its aliases with theirs.
void add_op(Levels& levels, std::string_view op) {
  levels.add({std::string(op)});
  Level family = family_of(op);
  Level operators;
  for (const std::string_view symbol : symbols_of(op)) {
    // "mul" is one name with "__mul__"; "truediv" is an alias of "div".
    if (symbol == op)
      operators.push_back(dunder(symbol));
    else
      family.emplace_back(symbol);
  }
  if (const Operator* same = find_operator(op); same != nullptr && same->op != op) {
    operators.push_back(dunder(op));
    family.emplace_back(same->op);
    for (std::string& alias : family_of(same->op)) family.push_back(std::move(alias));
  }
  levels.add(operators);
  Level aliases = family;
  for (const std::string& alias : family) {
    if (find_operator(alias) != nullptr) aliases.push_back(dunder(alias));
  }
  levels.add(aliases);
}

// What writes to its first argument: relu_, __iadd__, iadd. Its own spellings, then those of the op
// that makes a new tensor.
void add_in_place(Levels& levels, std::string_view op) {
  levels.add({std::string(op) + "_"});
  Level spelled;
  for (const std::string_view symbol : symbols_of(op)) {
    spelled.push_back("i" + std::string(symbol));
    spelled.push_back(dunder("i" + std::string(symbol)));
  }
  levels.add(spelled);
  Level aliases;
  for (const std::string& alias : family_of(op)) aliases.push_back(alias + "_");
  levels.add(aliases);
  add_op(levels, op);
}

// a - b with the operands changed: its own spellings, then those of the operator.
void add_reflected(Levels& levels, const Operator& op) {
  const std::string symbol = "r" + std::string(op.symbol);
  levels.add(op.spelled ? Level{dunder(symbol), symbol} : Level{dunder(symbol)});
  if (op.op == "div") {  // one Python function, which Python 3 calls for 1 / x
    levels.add({"__rtruediv__", "rtruediv", "__rdiv__", "rdiv"});
    levels.add({"__truediv__", "truediv"});
  }
  levels.add({dunder(op.symbol), std::string(op.symbol)});
  add_op(levels, op.op);
}

const Operator* operator_behind(char prefix, std::string_view name, bool spelled) {
  if (name.empty() || name.front() != prefix) return nullptr;
  const Operator* op = find_operator(name.substr(1));
  return op != nullptr && (!spelled || op->spelled) ? op : nullptr;
}

// `homes`: the name of a home, where torch.linalg.inv is inv; not that of an op of the dispatcher,
// where the one calls the other.
void add_spellings(Levels& levels, std::string_view name, bool homes) {
  levels.add({std::string(name)});
  const bool has_dunder = is_dunder(name);
  const std::string_view plain = has_dunder ? name.substr(2, name.size() - 4) : name;

  if (const Operator* op = operator_behind('i', plain, !has_dunder)) {
    levels.add(op->spelled ? Level{std::string(plain), dunder(plain)} : Level{dunder(plain)});
    add_in_place(levels, op->op);
  } else if (const Operator* reflected = operator_behind('r', plain, !has_dunder)) {
    add_reflected(levels, *reflected);
  } else if (has_dunder) {
    levels.add({std::string(plain)});
    if (const Operator* unary = find_operator(plain)) add_op(levels, unary->op);
  } else if (name.size() > 1 && name.ends_with('_')) {
    add_in_place(levels, name.substr(0, name.size() - 1));
  } else {
    add_op(levels, name);
    for (const std::string_view prefix : kModulePrefixes) {
      if (homes && name.starts_with(prefix)) add_op(levels, name.substr(prefix.size()));
    }
  }
}

}  // namespace

NamesOfHome names_of_home(std::string_view home_name) {
  if (home_name.empty()) return {};
  Levels levels;
  add_spellings(levels, home_name, true);
  Level reached;
  const std::vector<std::string>& spellings = levels.seen();
  const auto spelled = [&](std::string_view home) {
    return std::ranges::find(spellings, home) != spellings.end();
  };
  for (const Reached& row : kReached) {
    if (std::ranges::none_of(row.homes, spelled)) continue;
    for (const std::string_view name : row.names) {
      if (!name.empty() && !spelled(name)) reached.emplace_back(name);
    }
  }
  return {levels.take(), std::move(reached)};
}

std::vector<Level> candidates(std::string_view home_name) {
  NamesOfHome names = names_of_home(home_name);
  for (std::string& name : names.reached) names.spellings.push_back({std::move(name)});
  return std::move(names.spellings);
}

std::vector<Level> dispatched_candidates(std::string_view op) {
  if (op.empty()) return {};
  Levels levels;
  add_spellings(levels, op, false);
  for (const Reached& row : kCalledAs) {
    if (row.homes.front() != op) continue;
    Level names;
    for (const std::string_view name : row.names) {
      if (!name.empty()) names.emplace_back(name);
    }
    levels.add(names);
  }
  return levels.take();
}

}  // namespace habana_mp
