// The engine alone: it decides, casts, keeps copies of weights and tells whoever listens, without
// watch, report, probe and evidence (tests/cpp/engine/run.py).
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES  // torch has a CHECK of its own
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autocast/rules.h"
#include "call/cast_argument.h"
#include "call/weight_ops.h"
#include "convert/patched_type.h"
#include "listen/watched_call.h"
#include "scope/casts_off.h"
#include "scope/regions.h"
#include "weights/weight_cache.h"

using namespace habana_mp;

namespace {

// Follows the calls of one thread, as the instruments do.
class Follows final : public listen::Observer {
 public:
  Follows() {
    listen::observer = this;
    listen::set_heard(listen::Hears::Calls, true);
  }
  ~Follows() {
    listen::set_heard(listen::Hears::Calls, false);
    listen::observer = nullptr;
  }

  bool begins(const listen::DecidedCall& call,
              c10::function_ref<c10::ArrayRef<at::Tensor>()> inputs) override {
    seen.push_back("begins " + call.texts.name() + ", " + call.texts.rule() + ", " +
                   std::to_string(inputs().size()) + " tensors");
    inside = true;
    return true;
  }
  bool in_call() override { return inside; }
  void casts(const at::Tensor&, const at::Tensor&, const listen::Cast& cast) override {
    seen.push_back(std::string("casts ") + dtype_name(cast.from) + " to " + dtype_name(cast.to));
  }
  void forget_casts() override { seen.emplace_back("forgets casts"); }
  void abandon() override { seen.emplace_back("abandons"); }
  void ends(c10::ArrayRef<at::Tensor> results) override {
    seen.push_back(std::string("ends in ") + c10::toString(results.front().scalar_type()));
    inside = false;
  }
  std::uint64_t origin_here() override { return inside ? 1 : 0; }
  at::Tensor cast_back(std::uint64_t, const at::Tensor&, DType to,
                       c10::function_ref<at::Tensor()> cast) override {
    seen.push_back(std::string("casts back to ") + dtype_name(to));
    return cast();
  }

  std::vector<std::string> seen;
  bool inside = false;
};

// A patched op as a conversion makes it, with a rule.
py::object patched(const char* op, Action action, const char* text) {
  const auto original = py::module_::import("torch").attr(op);
  const auto base = py::reinterpret_borrow<py::object>(patched_function_type());
  const py::object type =
      py::module_::import("builtins").attr("type")("Patched", py::make_tuple(base), py::dict());
  DOCTEST_REQUIRE(enable_vectorcall(type.ptr()));
  py::object made = type(original, original, op);
  made.attr("rule") =
      py::make_tuple(static_cast<int>(action), static_cast<int>(DType::BFloat16), true, text);
  return made;
}

// A text: doctest would print a dtype by a function of torch's.
std::string dtype(const at::Tensor& tensor) { return c10::toString(tensor.scalar_type()); }

std::string dtype_of_call(const py::object& op, const at::Tensor& a, const at::Tensor& b) {
  return dtype(op(a, b).cast<at::Tensor>());
}

void run_backward(const at::Tensor& loss) {
  const py::gil_scoped_release no_gil;
  loss.backward();
}

// mm in bfloat16 and exp in float32.
autocast::Region region() {
  const Policy policy(PolicyFields{
      .name = "test",
      .low_dtype = DType::BFloat16,
      .rest = Action::Inputs,
      .entries = {{.op = "mm", .list = Action::Lower}, {.op = "exp", .list = Action::Fp32}}});
  const auto rules =
      autocast::compile(std::make_shared<const Policy>(policy), /*of_conversion=*/false);
  autocast::register_kernels(*rules);
  const autocast::Scope scope{.rules = rules, .cached = true};
  autocast::Region made;
  made.settings.push_back({autocast::kDeviceCount - 1, true, at::kBFloat16, scope});
  return made;
}

}  // namespace

DOCTEST_TEST_CASE("an argument is cast as ATen casts it, and its gradient back") {
  const at::Tensor source = at::randn({8, 8}).requires_grad_();
  const at::Tensor cast = cast_argument(source, DType::BFloat16, {});
  DOCTEST_CHECK(cast.equal(source.to(at::kBFloat16)));
  run_backward(cast.sum());
  DOCTEST_CHECK(source.grad().equal(at::ones({8, 8})));
}

DOCTEST_TEST_CASE("a weight is cast once until it changes") {
  weight_cache().clear();
  weight_cache().set_limit(std::size_t{1} << 20);
  const at::Tensor weight = at::randn({64, 64}).requires_grad_();
  const auto cast = [&] { return cast_argument(weight, DType::BFloat16, {.cached = true}); };
  DOCTEST_CHECK(cast().data_ptr() == cast().data_ptr());
  {
    const at::NoGradGuard no_grad;
    weight.add_(1);
  }
  DOCTEST_CHECK(cast().equal(weight.to(at::kBFloat16)));
  const WeightCache::Info info = weight_cache().info();
  DOCTEST_CHECK(info.misses + info.refreshed == 2);
  DOCTEST_CHECK(info.hits == 1);
  DOCTEST_CHECK(info.ended[static_cast<std::size_t>(Ended::Version)] == 1);
  weight_cache().set_limit(0);
}

DOCTEST_TEST_CASE("a patched op computes in the dtype of its rule") {
  const at::Tensor a = at::randn({4, 4}), b = at::randn({4, 4});
  const at::Tensor low = a.to(at::kBFloat16);
  const py::object lower = patched("mm", Action::Lower, "lower: mm");
  DOCTEST_CHECK(dtype_of_call(lower, a, b) == "BFloat16");
  DOCTEST_CHECK(lower(a, b).cast<at::Tensor>().equal(at::mm(low, b.to(at::kBFloat16))));
  DOCTEST_CHECK(dtype(a) == "Float");
  const py::object fp32 = patched("mul", Action::Fp32, "fp32: mul");
  DOCTEST_CHECK(dtype_of_call(fp32, low, low) == "Float");
  {
    const CastsOffGuard off(true);
    DOCTEST_CHECK(dtype_of_call(lower, a, b) == "Float");
  }
  const py::object error = patched("mm", Action::Error, "error: mm");
  DOCTEST_CHECK_THROWS_AS(error(a, b), py::error_already_set);
  lower.attr("rule") = py::none();
  DOCTEST_CHECK(dtype_of_call(lower, a, b) == "Float");
}

DOCTEST_TEST_CASE("an op of the dispatcher computes in the dtype of its rule inside a region") {
  const at::Tensor a = at::randn({4, 4}), low = a.to(at::kBFloat16);
  {
    const autocast::InsideRegion inside(region());
    DOCTEST_CHECK(dtype(at::mm(a, a)) == "BFloat16");
    DOCTEST_CHECK(dtype(at::exp(low)) == "Float");
    DOCTEST_CHECK(dtype(at::neg(low)) == "BFloat16");
  }
  DOCTEST_CHECK(dtype(at::mm(a, a)) == "Float");
}

DOCTEST_TEST_CASE("whoever listens follows a call from its decision to its end") {
  const at::Tensor a = at::randn({4, 4}).requires_grad_(), b = at::randn({4, 4});
  const std::vector<std::string> converted = {
      "begins mm, lower: mm, 2 tensors", "casts float32 to bfloat16", "casts float32 to bfloat16",
      "ends in BFloat16", "casts back to float32"};
  {
    Follows listener;
    run_backward(patched("mm", Action::Lower, "lower: mm")(a, b).cast<at::Tensor>().sum());
    DOCTEST_CHECK(listener.seen == converted);
    listener.seen.clear();
    const autocast::InsideRegion inside(region());
    at::mm(b, b);  // one tensor, cast once
    DOCTEST_CHECK(listener.seen == std::vector<std::string>{"begins mm, lower: mm, test, 2 tensors",
                                                            "casts float32 to bfloat16",
                                                            "ends in BFloat16"});
  }
  DOCTEST_CHECK_FALSE(listen::anyone_listens());
  patched("mm", Action::Lower, "lower: mm")(a, b);
}

extern "C" __attribute__((visibility("default"))) int run_tests() {
  register_weight_ops();  // as the module does when it is loaded
  return doctest::Context().run();
}
