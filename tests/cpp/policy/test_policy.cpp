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
  for (const char* name : names) out.push_back(read_listed(name, {file, ++line}));
  return out;
}

Policy make(std::initializer_list<const char*> lower, std::initializer_list<const char*> fp32 = {},
            std::initializer_list<const char*> promote = {},
            std::initializer_list<const char*> error = {}, DType low = DType::BFloat16) {
  return {"test",
          low,
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

TEST_CASE(
    "resolve: what a home reaches decides it in the order of the calls, by whole names (D17)") {
  CHECK(make({"_convolution"}, {"convolution"}).resolve("conv2d").listed_as == "convolution");
  CHECK(make({"convolution"}, {"_convolution"}).resolve("conv2d").listed_as == "convolution");
  CHECK(make({"_convolution"}).resolve("convolution").rule.action == Action::Lower);
  CHECK(make({"_convolution.deprecated"}).resolve("_convolution").rule.action == Action::Lower);
  CHECK_FALSE(make({"_convolution.deprecated"}).resolve("convolution").rule.listed);
  CHECK_FALSE(make({"_convolution.deprecated"}).resolve("conv2d").rule.listed);
}

TEST_CASE("resolve: an entry with a condition holds for that low dtype alone") {
  const Policy bf16 = make({"mm", "layer_norm@bfloat16"}, {"layer_norm@float16"});
  const Policy f16 =
      make({"mm", "layer_norm@bfloat16"}, {"layer_norm@float16"}, {}, {}, DType::Float16);
  CHECK(bf16.resolve("layer_norm").rule == Rule{Action::Lower, DType::BFloat16, true});
  CHECK(f16.resolve("layer_norm").rule == Rule{Action::Fp32, DType::Float16, true});
  CHECK(f16.resolve("mm").rule == Rule{Action::Lower, DType::Float16, true});
  CHECK(f16.resolve("layer_norm").listed_as == "layer_norm@float16");
  CHECK(bf16.resolve("layer_norm").listed_as == "layer_norm@bfloat16");
  CHECK(bf16.resolve("layer_norm").origin.line == 2);
  CHECK(make({"mm@float16"}).resolve("mm").listed_as.empty());
  CHECK(make({"mm@float16"}).resolve_overload("mm").rule.action == Action::Inputs);
}

TEST_CASE("resolve: of one op the entry with a condition wins, whatever the lists") {
  // What decides for mul, by lower, fp32, promote and error list.
  struct Row {
    std::initializer_list<const char*> lower, fp32, promote, error;
    Action action;
  };
  const Row rows[] = {
      {{"mul"}, {"mul@bfloat16"}, {}, {}, Action::Fp32},
      {{"mul"}, {"mul@float16"}, {}, {}, Action::Lower},
      {{"mul"}, {}, {"mul@bfloat16"}, {}, Action::Promote},
      {{}, {"mul"}, {"mul@bfloat16"}, {"mul"}, Action::Promote},
      {{"mul@bfloat16"}, {"mul"}, {}, {"mul"}, Action::Lower},
      {{"mul@bfloat16"}, {}, {"mul@bfloat16"}, {}, Action::Lower},
      {{}, {"mul@bfloat16"}, {}, {"mul@bfloat16"}, Action::Error},
      // Each name has its own rule (D16): names of the family are asked after the op's own.
      {{"mul"}, {"multiply@bfloat16"}, {}, {}, Action::Lower},
      {{"multiply"}, {"multiply@bfloat16"}, {}, {}, Action::Fp32},
  };
  for (const Row& row : rows) {
    const Policy policy = make(row.lower, row.fp32, row.promote, row.error);
    CHECK(policy.resolve("mul").rule.action == row.action);
    CHECK(policy.resolve("__mul__").rule.action == row.action);
    CHECK(policy.resolve_overload("mul").rule.action == row.action);
    CHECK(policy.resolve_overload("mul.Tensor").rule.action == row.action);
  }
}

TEST_CASE("resolve: conditions of an op and of its overloads (D17)") {
  const Policy whole = make({"pow.Tensor_Scalar"}, {"pow@bfloat16"});
  CHECK(whole.resolve("pow").rule.action == Action::Fp32);
  CHECK(whole.resolve("pow.Tensor_Scalar").rule.action == Action::Fp32);
  CHECK(whole.resolve_overload("pow.Tensor_Scalar").rule.action == Action::Fp32);

  const Policy overload = make({"pow"}, {"pow.Tensor_Scalar@bfloat16"});
  CHECK(overload.resolve("pow").rule.action == Action::Fp32);  // for convert it is the whole op
  CHECK(overload.resolve_overload("pow.Tensor_Scalar").rule.action == Action::Fp32);
  CHECK(overload.resolve_overload("pow.Tensor_Tensor").rule.action == Action::Lower);

  const Policy both = make({"pow@bfloat16"}, {"pow.Tensor_Scalar@bfloat16"});
  CHECK(both.resolve_overload("pow.Tensor_Scalar").rule.action == Action::Fp32);
  CHECK(both.resolve_overload("pow.Tensor_Tensor").rule.action == Action::Lower);
}

TEST_CASE("constructor: what is refused") {
  CHECK(error_of([] { make({"mm@float16"}, {"relu", "mm@float16"}); }) ==
        "'mm@float16' is in the lower list (low.txt:1) and in the fp32 list (fp32.txt:2). An op "
        "can be in only one of them");
  CHECK(error_of([] { make({"mm@float16", "relu"}, {"mm@bfloat16", "mm", "relu@float16"}); }) ==
        "accepted");
  CHECK(error_of([] { make({"relu", "mm@float64"}); }) ==
        "low.txt:2: 'mm@float64' is not an entry of a list. After @, float16 or bfloat16 is "
        "accepted");
  CHECK(error_of([] { make({"no name@float16"}); }) ==
        "low.txt:1: 'no name' is not an op name. Letters, digits, _ and one dot are accepted");
  CHECK(error_of([] { Policy("x", DType::Float16, Action::Inputs, {}, {}); }) ==
        "the low dtypes of a policy must be float16, bfloat16 or both");
  CHECK(error_of([] { Policy("x", DType::Float16, Action::Inputs, {}, {DType::Float32}); }) ==
        "the low dtypes of a policy must be float16, bfloat16 or both");
  CHECK(error_of([] { make({"mm", "relu"}, {"relu"}); }) ==
        "'relu' is in the lower list (low.txt:2) and in the fp32 list (fp32.txt:1). An op can be "
        "in only one of them");
  CHECK(error_of([] { make({"no name"}); }) ==
        "low.txt:1: 'no name' is not an op name. Letters, digits, _ and one dot are accepted");
  CHECK(error_of([] { Policy("x", DType::Float32, Action::Inputs, {}); }) ==
        "the low dtype of a policy must be float16 or bfloat16, not float32");
  CHECK(error_of([] { Policy("x", DType::Float16, Action::Lower, {}); }) ==
        "the rest of a policy must be first_input, fp32 or inputs");
  CHECK(error_of([] { Policy("a b", DType::Float16, Action::Inputs, {}); }) ==
        "'a b' is not a policy name. Up to 64 letters, digits, _ - + . are accepted");
}

TEST_CASE("text: one line, sorted, that round-trips") {
  const Policy policy = make({"mm", "bmm", "mm"}, {}, {"add"});
  CHECK(policy.text() ==
        "name=test low_dtype=bfloat16 rest=first_input lower=bmm,mm fp32= promote=add error=");
  CHECK(Policy::parse(policy.text()) == policy);
  CHECK(Policy::parse(policy.text()).text() == policy.text());
}

TEST_CASE("text: conditions, low dtypes and cache") {
  const Policy policy{"test",
                      DType::BFloat16,
                      Action::Inputs,
                      {named("x", {"pow.Tensor_Scalar", "pow@float16", "pow", "pow@bfloat16"}),
                       {},
                       {},
                       named("", {"mm@float16"})},
                      {DType::BFloat16, DType::BFloat16},
                      false};
  CHECK(policy.text() ==
        "name=test low_dtype=bfloat16 low_dtypes=bfloat16 rest=inputs cache=false "
        "lower=pow,pow@float16,pow@bfloat16,pow.Tensor_Scalar fp32= promote= error=mm@float16");
  CHECK(Policy::parse(policy.text()) == policy);
  CHECK(Policy::parse(policy.text()).text() == policy.text());
  CHECK(Policy::parse("name=x low_dtype=float16 low_dtypes=float16,bfloat16 rest=inputs cache=true "
                      "lower= fp32= promote= error=")
            .text() == "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error=");
}

TEST_CASE("limited: names for some modules decide nothing, and are kept") {
  const std::string text =
      "name=x low_dtype=float16 rest=inputs lower=mm fp32= promote= error= "
      "limited=lower:mm@float16:*.a,fp32:mm:b,promote:add:b";
  const Policy policy = Policy::parse(text);
  CHECK(policy.limited().size() == 3);
  CHECK(policy.resolve("mm").listed_as == "mm");
  CHECK(policy.resolve("add").rule.action == Action::Inputs);
  CHECK(Policy::parse(policy.text()) == policy);
  const Policy plain =
      Policy::parse("name=x low_dtype=float16 rest=inputs lower=mm fp32= promote= error=");
  CHECK_FALSE(plain == policy);
  CHECK(plain.hash() != policy.hash());
  CHECK(error_of([] { read_listed("mm in a", {"low.txt", 3}); }) ==
        "low.txt:3: 'mm in a' is limited to modules. Here the name must hold for the whole model");
}

TEST_CASE("parse: what is refused") {
  const std::string good = make({"mm"}).text();
  for (std::size_t length = 0; length < good.size(); ++length) {
    // Every text cut short lacks a field; only inside a name and behind the last field nothing is
    // missing.
    CHECK_MESSAGE(error_of([&] { Policy::parse(good.substr(0, length)); }) != "accepted",
                  good.substr(0, length));
  }
  for (const char* bad :
       {"name=x low_dtype=float32 rest=inputs lower= fp32= promote= error=",
        "name=x low_dtype=float16 rest=error lower= fp32= promote= error=",
        "name=x low_dtype=float16 rest=inputs lower=a,,b fp32= promote= error=",
        "name=x low_dtype=float16 rest=inputs lower=a@ fp32= promote= error=",
        "name=x low_dtype=float16 rest=inputs cache=no lower= fp32= promote= error=",
        "name=x low_dtype=float16 low_dtypes= rest=inputs lower= fp32= promote= error=",
        "name=x low_dtype=float16 low_dtypes=int8 rest=inputs lower= fp32= promote= error=",
        "name=x low_dtype=float16 rest=inputs lower=a, fp32= promote= error=",
        "name=x low_dtype=float16 rest=inputs lower=a fp32=a promote= error=",
        "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error= more=",
        "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error= limited=mm",
        "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error= limited=mm:a",
        "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error= limited=error:mm:a",
        "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error= limited=fp32:mm:a..b",
        "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error= "
        "limited=fp32:mm:a,lower:mm:a",
        "name=x rest=inputs low_dtype=float16 lower= fp32= promote= error="}) {
    CHECK_MESSAGE(error_of([&] { Policy::parse(bad); }) != "accepted", bad);
  }
}

TEST_CASE("equality and hash: all but name, places, order and doubles") {
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
  CHECK_FALSE(policy == make({"mm@bfloat16", "bmm"}, {"softmax"}));
  CHECK(policy.hash() != make({"mm@bfloat16", "bmm"}, {"softmax"}).hash());
  const std::vector<DType> low_dtypes = {DType::BFloat16};
  for (const Policy& other :
       {Policy{"test", DType::BFloat16, Action::FirstInput, policy.lists(), low_dtypes},
        Policy{"test", DType::BFloat16, Action::FirstInput, policy.lists(), policy.low_dtypes(),
               false}}) {
    CHECK_FALSE(policy == other);
    CHECK(policy.hash() != other.hash());
  }
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
