// The tables of ops: norms, ops that want contiguous batches, ops that compute; and the roles.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "policy/op_traits.h"
#include "policy/roles.h"

using namespace habana_mp;

TEST_CASE("the role of an argument (D11, D12, D14)") {
  static_assert(role_of({.norm = false, .first = true, .written = false, .statistic = false}) ==
                Role::Input);
  static_assert(role_of({.norm = false, .first = false, .written = false, .statistic = true}) ==
                Role::Input);
  static_assert(role_of({.norm = true, .first = true, .written = false, .statistic = false}) ==
                Role::Input);
  static_assert(role_of({.norm = true, .first = false, .written = false, .statistic = false}) ==
                Role::Affine);
  static_assert(role_of({.norm = true, .first = false, .written = false, .statistic = true}) ==
                Role::Statistic);
  // What is written to is never cast, whatever else it is.
  static_assert(role_of({.norm = true, .first = false, .written = true, .statistic = true}) ==
                Role::Target);
  CHECK(names_statistic("running_mean"));
  CHECK(names_statistic("running_var"));
  CHECK_FALSE(names_statistic("weight"));
}

TEST_CASE("norms, by the places of their statistics (D14, F132)") {
  std::set<std::string_view> names;
  for (const Norm& norm : kNorms) {
    CAPTURE(std::string(norm.op));
    CHECK(names.insert(norm.op).second);
    CHECK(is_norm(norm.op));
    const bool running =
        norm.op.find("batch_norm") != std::string_view::npos || norm.op == "instance_norm";
    CHECK(norm.statistics == (running ? 0b11000u : 0u));
    const bool functional = norm.op == "batch_norm" || norm.op == "instance_norm";
    CHECK(norm.functional_statistics == (functional ? 0b00110u : 0u));
  }
  CHECK(names.size() == 12);
  for (const char* other : {"rms_norm", "norm", "renorm", "linear", "batch_norm_stats", ""})
    CHECK_FALSE(is_norm(other));
}

TEST_CASE("ops that want contiguous batches") {
  for (const char* op : {"linear", "matmul", "linalg_matmul", "__matmul__", "__rmatmul__"})
    CHECK(wants_contiguous(op));
  for (const char* op : {"mm", "bmm", "addmm", "conv2d", ""}) CHECK_FALSE(wants_contiguous(op));
}

TEST_CASE("which ops compute (D15)") {
  for (const char* op : {"mm", "relu_", "__add__", "__iadd__", "__neg__", "where", "index_put_",
                         "linalg_inv", "fft_fft", "special_erf", "lstm", "add", "batch_norm"}) {
    CAPTURE(op);
    CHECK(computes(op));
  }
  for (const char* op : {"type_as",
                         "view",
                         "zeros",
                         "rand",
                         "eq",
                         "eq_",
                         "copy_",
                         "clone",
                         "__eq__",
                         "__iand__",
                         "__getitem__",
                         "fft_fftshift",
                         "linalg_diagonal",
                         "fill_",
                         "_softmax",
                         "native_layer_norm",
                         "mkldnn_linear",
                         "quantize_per_tensor",
                         "fake_quantize_per_tensor_affine",
                         "set_"}) {
    CAPTURE(op);
    CHECK_FALSE(computes(op));
  }
}

TEST_CASE("no name is left out of the rest twice, and each that is does not compute") {
  std::set<std::string> names;
  for (const NotComputing& group : not_computing()) {
    for (std::string_view rest = group.ops; !rest.empty();) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const std::string name(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      CAPTURE(name);
      CHECK(names.insert(name).second);
      CHECK_FALSE(computes(name));
    }
  }
  CHECK(names.size() > 300);
}

TEST_CASE("what an op is made of (D41)") {
  for (const char* op : {"einsum", "linalg_matrix_power", "fft_stft", "gru", "ctc_loss"}) {
    CAPTURE(op);
    CHECK(insides_of(op) == Insides::Compound);
  }
  for (const char* op : {"matrix_exp", "linalg_pinv", "matmul", "linalg_matmul", "cdist"}) {
    CAPTURE(op);
    CHECK(insides_of(op) == Insides::Own);
  }
  for (const char* op : {"mm", "add", "einsum_", ""}) CHECK(insides_of(op) == Insides::ByRules);
  for (const char* op : {"mm", "conv2d", "lstm_cell"}) CHECK(is_product(op));
  for (const char* op : {"mul", "einsum", "softmax"}) CHECK_FALSE(is_product(op));
}

TEST_CASE("ops that refuse mixed dtypes, in place too (D41), or lack kernels (D42)") {
  for (const char* op : {"index_add", "index_add_", "__setitem__", "prelu", "linear"}) {
    CAPTURE(op);
    CHECK(refuses_mixed(op));
  }
  // torch takes a float32 mask beside low queries, and float32 weights in a norm.
  for (const char* op : {"scaled_dot_product_attention", "layer_norm", "add", "where", "_"}) {
    CAPTURE(op);
    CHECK_FALSE(refuses_mixed(op));
  }
  for (const char* op : {"linalg_inv", "fft_rfft", "special_i0", "polar", "layer_norm"}) {
    CAPTURE(op);
    CHECK(may_lack_low_kernel(op));
  }
  for (const char* op : {"mm", "add", "relu"}) CHECK_FALSE(may_lack_low_kernel(op));
}
