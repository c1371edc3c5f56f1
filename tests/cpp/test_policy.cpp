// Policy: checks, look-up order, text form, equality and hash.
#include <doctest/doctest.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "policy/policy.h"

using namespace habana_mp;

namespace {

std::vector<ListedName> named(const char* file, std::initializer_list<const char*> names) {
  std::vector<ListedName> out;
  int line = 0;
  for (const char* name : names) out.push_back({name, {file, ++line}});
  return out;
}

Policy make(std::initializer_list<const char*> lower, std::initializer_list<const char*> fp32 = {},
            std::initializer_list<const char*> promote = {},
            std::initializer_list<const char*> error = {}) {
  return {"test",
          DType::BFloat16,
          Action::FirstInput,
          {named("low.txt", lower), named("fp32.txt", fp32), named("promote.txt", promote),
           named("", error)}};
}

template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("resolve: lower, fp32, promote, then the rest (D11)") {
  const Policy policy = make({"mm"}, {"softmax"}, {"add", "mm", "softmax"});
  CHECK(policy.resolve("mm").rule == Rule{Action::Lower, DType::BFloat16, true});
  CHECK(policy.resolve("softmax").rule == Rule{Action::Fp32, DType::BFloat16, true});
  CHECK(policy.resolve("add").rule == Rule{Action::Promote, DType::BFloat16, true});
  CHECK(policy.resolve("gelu").rule == Rule{Action::FirstInput, DType::BFloat16, false});
  CHECK(policy.resolve("gelu").listed_as.empty());
}

TEST_CASE("resolve: error comes first (D31)") {
  const Policy policy = make({}, {"binary_cross_entropy"}, {}, {"binary_cross_entropy"});
  CHECK(policy.resolve("binary_cross_entropy").rule.action == Action::Error);
}

TEST_CASE("resolve: a more specific name wins over a list that comes earlier (D16)") {
  const Policy policy = make({"div"}, {"truediv"}, {"__rsub__", "sub"});
  CHECK(policy.resolve("div").rule.action == Action::Lower);
  CHECK(policy.resolve("__truediv__").rule.action == Action::Fp32);
  CHECK(policy.resolve("true_divide").rule.action == Action::Lower);
  CHECK(policy.resolve("__rsub__").listed_as == "__rsub__");
  CHECK(policy.resolve("rsub").listed_as == "__rsub__");
  CHECK(policy.resolve("__sub__").listed_as == "sub");
}

TEST_CASE("resolve: where a name was listed") {
  const Resolution found = make({"addmm", "mm"}).resolve("mm");
  CHECK(found.listed_as == "mm");
  CHECK(found.origin.file == "low.txt");
  CHECK(found.origin.line == 2);
}

TEST_CASE("resolve: an overload name is the whole op, and itself when asked for (D17)") {
  const Policy policy = make({"pow.Tensor_Scalar"}, {"sum.dim_IntList"}, {"pow", "power"});
  CHECK(policy.resolve("pow").listed_as == "pow.Tensor_Scalar");
  CHECK(policy.resolve("__pow__").rule.action == Action::Lower);
  CHECK(policy.resolve("pow.Tensor_Scalar").listed_as == "pow.Tensor_Scalar");
  CHECK(policy.resolve("sum").rule.action == Action::Fp32);
  CHECK(policy.resolve("po").listed_as.empty());
}

TEST_CASE("constructor: what is refused") {
  CHECK(error_of([] { make({"mm", "relu"}, {"relu"}); }) ==
        "'relu' is in the lower list (low.txt:2) and in the fp32 list (fp32.txt:1); an op can be "
        "in one of them only");
  CHECK(error_of([] { make({"no name"}); }) ==
        "low.txt:1: 'no name' is no op name: letters, digits, _ and one dot are accepted");
  CHECK(error_of([] { Policy("x", DType::Float32, Action::Inputs, {}); }) ==
        "the low dtype of a policy is float16 or bfloat16, not float32");
  CHECK(error_of([] { Policy("x", DType::Float16, Action::Lower, {}); }) ==
        "the rest of a policy is first_input, fp32 or inputs");
  CHECK(error_of([] { Policy("a b", DType::Float16, Action::Inputs, {}); }) ==
        "'a b' is no policy name: up to 64 letters, digits, _ - + . are accepted");
}

TEST_CASE("text: one line, sorted, that round-trips") {
  const Policy policy = make({"mm", "bmm", "mm"}, {}, {"add"});
  CHECK(policy.text() ==
        "name=test low_dtype=bfloat16 rest=first_input lower=bmm,mm fp32= promote=add error=");
  CHECK(Policy::parse(policy.text()) == policy);
  CHECK(Policy::parse(policy.text()).text() == policy.text());
}

TEST_CASE("parse: what is refused") {
  const std::string good = make({"mm"}).text();
  for (std::size_t length = 0; length < good.size(); ++length) {
    // Every text cut short lacks a field; only inside a name and behind the last field nothing is
    // missing.
    CHECK_MESSAGE(error_of([&] { Policy::parse(good.substr(0, length)); }) != "accepted",
                  good.substr(0, length));
  }
  for (const char* bad : {"name=x low_dtype=float32 rest=inputs lower= fp32= promote= error=",
                          "name=x low_dtype=float16 rest=error lower= fp32= promote= error=",
                          "name=x low_dtype=float16 rest=inputs lower=a,,b fp32= promote= error=",
                          "name=x low_dtype=float16 rest=inputs lower=a, fp32= promote= error=",
                          "name=x low_dtype=float16 rest=inputs lower=a fp32=a promote= error=",
                          "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error= more=",
                          "name=x rest=inputs low_dtype=float16 lower= fp32= promote= error="}) {
    CHECK_MESSAGE(error_of([&] { Policy::parse(bad); }) != "accepted", bad);
  }
}

TEST_CASE("equality and hash: low dtype, rest and lists, not name, places, order or doubles") {
  const Policy policy = make({"mm", "bmm"}, {"softmax"});
  const Policy same{"other",
                    DType::BFloat16,
                    Action::FirstInput,
                    {named("x", {"bmm", "mm", "mm"}), named("y", {"softmax"}), {}, {}}};
  CHECK(policy == same);
  CHECK(policy.hash() == same.hash());
  CHECK_FALSE(policy == make({"mm"}, {"softmax", "bmm"}));
  CHECK_FALSE(policy == make({"mm", "bmm"}, {"softmax"}, {"add"}));
  CHECK_FALSE(policy == Policy{"test", DType::Float16, Action::FirstInput, policy.lists()});
  CHECK_FALSE(policy == Policy{"test", DType::BFloat16, Action::Inputs, policy.lists()});
}

TEST_CASE("hash is the same on every machine") {
  // FNV-1a of "low_dtype=bfloat16 rest=first_input lower=mm fp32= promote= error=".
  CHECK(make({"mm"}).hash() == 9128119425848757344u);
}

TEST_CASE("a double keeps its first place") {
  const Policy policy{"test",
                      DType::BFloat16,
                      Action::Inputs,
                      {{{"mm", {"a.txt", 3}}, {"mm", {"a.txt", 9}}}, {}, {}, {}}};
  CHECK(policy.lists().lower.size() == 1);
  CHECK(policy.resolve("mm").origin.line == 3);
}
