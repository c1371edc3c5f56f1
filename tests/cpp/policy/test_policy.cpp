// Policy: checks, look-up order, text form, equality and hash.
#include <doctest/doctest.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "policy/policy.h"

using namespace habana_mp;

namespace {

using Texts = std::initializer_list<const char*>;

// The entries of a list, in the lines of a file.
std::vector<Entry> named(const char* file, Action list, Texts texts) {
  std::vector<Entry> out;
  for (const char* text : texts) {
    Entry entry = read_entry(text).value_or(Entry{.op = text});
    entry.list = list;
    entry.file = file;
    entry.line = static_cast<int>(out.size()) + 1;
    out.push_back(entry);
  }
  return out;
}

PolicyFields fields(Texts lower, Texts fp32 = {}, Texts promote = {}, Texts error = {}) {
  PolicyFields made{.name = "test", .low_dtype = DType::BFloat16, .rest = Action::FirstInput};
  for (const auto& list :
       {named("low.txt", Action::Lower, lower), named("fp32.txt", Action::Fp32, fp32),
        named("promote.txt", Action::Promote, promote), named("policy.toml", Action::Error, error)})
    made.entries.insert(made.entries.end(), list.begin(), list.end());
  return made;
}

Policy make(Texts lower, Texts fp32 = {}, Texts promote = {}, Texts error = {},
            DType low = DType::BFloat16) {
  PolicyFields made = fields(lower, fp32, promote, error);
  made.low_dtype = low;
  return Policy(made);
}

std::string listed_as(const Resolution& found) { return found.entry ? written(*found.entry) : ""; }

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
  CHECK_FALSE(policy.resolve("gelu").entry);
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
  CHECK(listed_as(policy.resolve("__rsub__")) == "__rsub__");
  CHECK(listed_as(policy.resolve("rsub")) == "__rsub__");
  CHECK(listed_as(policy.resolve("__sub__")) == "sub");
}

TEST_CASE("resolve: where a name was listed") {
  const Resolution found = make({"addmm", "mm"}).resolve("mm");
  CHECK(listed_as(found) == "mm");
  CHECK(found.entry->file == "low.txt");
  CHECK(found.entry->line == 2);
}

TEST_CASE("resolve: an overload name is the whole op, and itself when asked for (D17)") {
  const Policy policy = make({"pow.Tensor_Scalar"}, {"sum.dim_IntList"}, {"pow", "power"});
  CHECK(listed_as(policy.resolve("pow")) == "pow.Tensor_Scalar");
  CHECK(policy.resolve("__pow__").rule.action == Action::Lower);
  CHECK(listed_as(policy.resolve("pow.Tensor_Scalar")) == "pow.Tensor_Scalar");
  CHECK(policy.resolve("sum").rule.action == Action::Fp32);
  CHECK_FALSE(policy.resolve("po").entry);
}

TEST_CASE(
    "resolve: what a home reaches decides it in the order of the calls, by whole names (D17)") {
  CHECK(listed_as(make({"_convolution"}, {"convolution"}).resolve("conv2d")) == "convolution");
  CHECK(listed_as(make({"convolution"}, {"_convolution"}).resolve("conv2d")) == "convolution");
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
  CHECK(listed_as(f16.resolve("layer_norm")) == "layer_norm@float16");
  CHECK(listed_as(bf16.resolve("layer_norm")) == "layer_norm@bfloat16");
  CHECK(bf16.resolve("layer_norm").entry->line == 2);
  CHECK_FALSE(make({"mm@float16"}).resolve("mm").entry);
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
  const auto with = [](auto PolicyFields::* member, auto value) {
    PolicyFields made = fields({});
    made.*member = value;
    return error_of([&] { Policy{made}; });
  };
  using LowDTypes = std::vector<DType>;
  CHECK(with(&PolicyFields::low_dtypes, LowDTypes{}) ==
        "the low dtypes of a policy must be float16, bfloat16 or both");
  CHECK(with(&PolicyFields::low_dtypes, LowDTypes{DType::Float32}) ==
        "the low dtypes of a policy must be float16, bfloat16 or both");
  CHECK(error_of([] { make({"mm", "relu"}, {"relu"}); }) ==
        "'relu' is in the lower list (low.txt:2) and in the fp32 list (fp32.txt:1). An op can be "
        "in only one of them");
  CHECK(error_of([] { make({"no name"}); }) ==
        "low.txt:1: 'no name' is not an op name. Letters, digits, _ and one dot are accepted");
  CHECK(with(&PolicyFields::low_dtype, DType::Float32) ==
        "the low dtype of a policy must be float16 or bfloat16, not float32");
  CHECK(with(&PolicyFields::rest, Action::Lower) ==
        "the rest of a policy must be first_input, fp32 or inputs");
  CHECK(with(&PolicyFields::name, std::string("a b")) ==
        "'a b' is not a policy name. Up to 64 letters, digits, _ - + . are accepted");
  CHECK(error_of([] { make({}, {}, {}, {"mm in a"}); }) ==
        "policy.toml:1: 'mm in a' is limited to modules. Here the name must hold for the whole "
        "model");
  CHECK(error_of([] { make({"mm in a"}, {"mm in a"}); }) ==
        "'mm in a' is in the lower list (low.txt:1) and in the fp32 list (fp32.txt:1). It can be "
        "in only one of them");
  CHECK(error_of([] { make({"mm in a"}, {"mm in b", "mm"}); }) == "accepted");
}

TEST_CASE("lists for 8 bits (D56)") {
  const auto with = [](const char* entry, Action list) {
    PolicyFields made = fields({});
    made.entries = named("8.txt", list, {entry});
    return error_of([&] { Policy{made}; });
  };
  for (const Action list : {Action::WeightInt8, Action::Int8}) {
    for (const char* op :
         {"linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "conv2d.padding", "conv3d"})
      CHECK(with(op, list) == "accepted");
    CHECK(with("mm in head", list) == "accepted");
  }
  CHECK(with("embedding", Action::WeightInt8) == "accepted");
  CHECK(with("embedding", Action::Int8) ==
        "8.txt:1: 'embedding' cannot be in the int8 list. Accepted are linear, addmm, mm, matmul, "
        "bmm, baddbmm, "
        "conv1d, conv2d, conv3d");
  CHECK(with("softmax in head", Action::WeightInt8) ==
        "8.txt:1: 'softmax in head' cannot be in the weight_int8 list. Accepted are linear, addmm, "
        "mm, matmul, bmm, baddbmm, conv1d, conv2d, conv3d, embedding, embedding_bag");
}

TEST_CASE("conflicts_of: all of them, each with the later entry (D23)") {
  const auto found = conflicts_of(fields({"mm", "bmm"}, {"relu", "mm", "bmm"}, {"mm"}).entries);
  REQUIRE(found.size() == 2);
  CHECK(place(found[0].entry) == "fp32.txt:3");
  CHECK(place(found[1].entry) == "fp32.txt:2");
  CHECK(found[1].why ==
        "'mm' is in the lower list (low.txt:1) and in the fp32 list (fp32.txt:2). An op can be in "
        "only one of them");
}

TEST_CASE("text: one line, sorted, that round-trips") {
  const Policy policy = make({"mm", "bmm", "mm"}, {}, {"add"});
  CHECK(policy.text() ==
        "name=test low_dtype=bfloat16 rest=first_input lower=bmm,mm fp32= promote=add error=");
  CHECK(Policy::parse(policy.text()) == policy);
  CHECK(Policy::parse(policy.text()).text() == policy.text());
}

TEST_CASE("text: conditions, low dtypes, cache and compiled") {
  PolicyFields made =
      fields({"pow.Tensor_Scalar", "pow@float16", "pow", "pow@bfloat16"}, {}, {}, {"mm@float16"});
  made.rest = Action::Inputs;
  made.low_dtypes = {DType::BFloat16, DType::BFloat16};
  made.cache = false;
  made.compiled = Compiled::Fused;
  const Policy policy(made);
  CHECK(policy.text() ==
        "name=test low_dtype=bfloat16 low_dtypes=bfloat16 rest=inputs cache=false "
        "compiled=fused lower=pow,pow@float16,pow@bfloat16,pow.Tensor_Scalar fp32= promote= "
        "error=mm@float16");
  CHECK(Policy::parse(policy.text()) == policy);
  CHECK(Policy::parse(policy.text()).text() == policy.text());
  CHECK(Policy::parse("name=x low_dtype=float16 low_dtypes=float16,bfloat16 rest=inputs cache=true "
                      "compiled=exact lower= fp32= promote= error=")
            .text() == "name=x low_dtype=float16 rest=inputs lower= fp32= promote= error=");
}

TEST_CASE("limited: names for some modules decide nothing, and are kept") {
  const std::string text =
      "name=x low_dtype=float16 rest=inputs lower=mm fp32= promote= error= "
      "limited=lower:mm@float16:*.a,fp32:mm:b,promote:add:b";
  const Policy policy = Policy::parse(text);
  CHECK(policy.entries().size() == 4);
  CHECK(listed_as(policy.resolve("mm")) == "mm");
  CHECK(policy.resolve("add").rule.action == Action::Inputs);
  CHECK(Policy::parse(policy.text()) == policy);
  const Policy plain =
      Policy::parse("name=x low_dtype=float16 rest=inputs lower=mm fp32= promote= error=");
  CHECK_FALSE(plain == policy);
  CHECK(plain.hash() != policy.hash());
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
        "name=x low_dtype=float16 rest=inputs compiled=fast lower= fp32= promote= error=",
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
  PolicyFields others = fields({"bmm", "mm", "mm"}, {"softmax"});
  others.name = "other";
  for (Entry& entry : others.entries) entry.file = entry.comment = "x";
  const Policy same(others);
  CHECK(policy == same);
  CHECK(policy.hash() == same.hash());
  CHECK_FALSE(policy == make({"mm"}, {"softmax", "bmm"}));
  CHECK_FALSE(policy == make({"mm", "bmm"}, {"softmax"}, {"add"}));
  CHECK_FALSE(policy == make({"mm@bfloat16", "bmm"}, {"softmax"}));
  CHECK(policy.hash() != make({"mm@bfloat16", "bmm"}, {"softmax"}).hash());
  const auto with = [&](auto PolicyFields::* member, auto value) {
    PolicyFields made = policy.fields();
    made.*member = value;
    return Policy(made);
  };
  for (const Policy& other :
       {with(&PolicyFields::low_dtype, DType::Float16), with(&PolicyFields::rest, Action::Inputs),
        with(&PolicyFields::low_dtypes, std::vector{DType::BFloat16}),
        with(&PolicyFields::cache, false), with(&PolicyFields::compiled, Compiled::Fused)}) {
    CHECK_FALSE(policy == other);
    CHECK(policy.hash() != other.hash());
  }
}

TEST_CASE("hash is the same on every machine") {
  // FNV-1a of "low_dtype=bfloat16 rest=first_input lower=mm fp32= promote= error=".
  CHECK(make({"mm"}).hash() == 9128119425848757344u);
}

TEST_CASE("a double keeps its first place") {
  const Policy policy = make({"mm", "bmm", "mm"});
  CHECK(policy.entries().size() == 2);
  CHECK(policy.resolve("mm").entry->line == 1);
}
