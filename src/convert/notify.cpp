#include "convert/notify.h"

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "base/name_numbers.h"
#include "call/errors.h"
#include "cast/tensors.h"
#include "listen/event.h"
#include "scope/compound.h"

namespace habana_mp {
namespace {

using listen::FrontEnd;

class Texts final : public listen::CallTexts {
 public:
  explicit Texts(const DecidedCall& call) : call_(call) {}

  std::string name() const override { return *call_.op.name; }
  std::string original() const override {
    std::string& repr = *call_.op.repr;
    if (repr.empty()) repr = py::repr(call_.op.original).cast<std::string>();
    return repr;
  }
  std::string rule() const override {
    if (call_.decision.cause == Cause::NoLowKernel)
      return no_kernel_text(call_.arguments.described(), call_.op.rule.low);
    return *call_.op.rule_text;
  }
  std::string argument(std::size_t i) const override {
    return call_.arguments.label(i, call_.positional, call_.kwnames);
  }
  std::shared_ptr<const Policy> policy() const override {
    const auto* region = call_.op.region_policy;
    return region == nullptr ? autocast::conversion() : *region;
  }

 private:
  const DecidedCall& call_;
};

using Found = c10::SmallVector<at::Tensor, 4>;

void add_tensors(PyObject* object, Found& found) {
  if (THPVariable_Check(object)) {
    found.push_back(THPVariable_Unpack(object));
  } else if (PyTuple_Check(object) || PyList_Check(object)) {
    PyObject** items = PySequence_Fast_ITEMS(object);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (THPVariable_Check(items[i])) found.push_back(THPVariable_Unpack(items[i]));
    }
  }
}

// Only listeners of calls need them, so they are made at the first call that is watched.
void number(PatchedOp& op) {
  if (op.name_number == 0) op.name_number = number_of(*op.name);
  if (op.decider_id == 0) {
    const std::uint64_t policy = op.region_policy == nullptr
                                     ? autocast::conversion_id()
                                     : listen::decider_id(**op.region_policy, FrontEnd::Autocast);
    op.decider_id = listen::decider_id(policy, *op.rule_text);
  }
}

}  // namespace

void notify_begin(listen::WatchedCall& watched, const DecidedCall& decided) {
  for (std::size_t i = 0; i < decided.arguments.size(); ++i) {
    if (is_fake(decided.arguments.tensor(i).object)) return;  // a compiler's call
  }
  const PatchedOp& op = decided.op;
  if (listen::anyone_hears(listen::Hears::Calls)) number(const_cast<PatchedOp&>(op));
  const Texts texts(decided);
  Found found;
  watched.begin({.op = op.name_number,
                 .decider_id = op.decider_id,
                 .front_end = op.region_policy == nullptr ? FrontEnd::Convert : FrontEnd::Autocast,
                 .dispatched = false,
                 .hides = !op.form.python || is_atomic(op),
                 .decision = decided.decision,
                 .casting = decided.casting,
                 .arguments = decided.arguments.described(),
                 .texts = texts},
                [&]() -> Tensors {
                  for (std::size_t i = 0; i < decided.arguments.size(); ++i) {
                    add_tensors(decided.arguments.tensor(i).object, found);
                  }
                  return found;
                });
}

void notify_end(listen::WatchedCall& watched, PyObject* result) {
  if (!watched.begun() || result == nullptr) return;
  Found results;
  add_tensors(result, results);
  watched.end(results);
}

}  // namespace habana_mp
