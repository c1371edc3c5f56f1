#include "torch/cast_record.h"

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "record/cast_log.h"
#include "torch/names.h"

namespace habana_mp {
namespace {

const std::string& repr_of(const PatchedOp& op) {
  if (op.repr->empty()) *op.repr = py::repr(op.original).cast<std::string>();
  return *op.repr;
}

// Its name as lists spell it, found once.
std::uint32_t name_of(PatchedOp& op) {
  if (op.name_number == 0) {
    const py::handle self(reinterpret_cast<PyObject*>(&op));
    op.name_number = number_of(
        py::module_::import("habana_mp._report.answers").attr("_name_of")(self).cast<std::string>());
  }
  return op.name_number;
}

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

}  // namespace

void log_call(const PatchedOp& op, const Arguments& arguments, const Decision& decision,
              bool casting, Py_ssize_t positional, PyObject* kwnames) {
  if (record::level() == record::Level::Off || !record::worth_a_line(decision.cause, casting))
    return;
  record::Event event{.op = repr_of(op), .to = decision.to, .cause = decision.cause};
  if (record::level() == record::Level::Casts) {
    return record::write(event);
  }
  std::vector<record::CastArgument> casts;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Arg& described = arguments.described()[i];
    if (decision.casts(described))
      casts.push_back({arguments.label(i, positional, kwnames), described.dtype});
  }
  const auto [module, source] = py::module_::import("habana_mp._watch.where")
                                    .attr("where")()
                                    .cast<std::pair<std::string, std::string>>();
  event.casts = casts;
  event.rule = *op.rule_text;
  event.module = module;
  event.source = source;
  record::write(event);
}

void watch_call(observer::Watch& watch, const PatchedOp& op, const Arguments& arguments,
                const Decision& decision) {
  if (!observer::reporting()) return;
  Found given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_fake(arguments.tensor(i).object)) return;
    given.push_back(THPVariable_Unpack(arguments.tensor(i).object));
  }
  if (op.context == 0) const_cast<PatchedOp&>(op).context = observer::context_of(*op.rule_text);
  const observer::Watch::What what{.op = name_of(const_cast<PatchedOp&>(op)),
                                   .context = op.context,
                                   .front_end = record::FrontEnd::Convert,
                                   .decision = decision,
                                   .hides = !op.form.python || is_atomic(op)};
  watch.begin(what, given, [&] {
    record::Site site;
    site.policy = py::module_::import("habana_mp._report.answers").attr("_converted")().cast<std::string>();
    site.rule = *op.rule_text;
    return site;
  });
}

void end_watch(observer::Watch& watch, PyObject* result) {
  if (!watch.begun() || result == nullptr) return;
  Found results;
  add_tensors(result, results);
  watch.end(results);
}

}  // namespace habana_mp
