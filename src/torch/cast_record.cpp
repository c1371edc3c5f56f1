#include "torch/cast_record.h"

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "record/cast_log.h"

namespace habana_mp {
namespace {

const std::string& repr_of(const PatchedOp& op) {
  if (op.repr->empty()) *op.repr = py::repr(op.original).cast<std::string>();
  return *op.repr;
}

}  // namespace

void log_call(const PatchedOp& op, const Arguments& arguments, const Decision& decision,
              bool casting, Py_ssize_t positional, PyObject* kwnames) {
  if (!record::worth_a_line(decision.cause, casting)) return;
  record::Event event{.op = repr_of(op), .to = decision.to, .cause = decision.cause};
  if (record::level() == record::Level::Casts) {
    return record::write(event);
  }
  std::vector<record::Cast> casts;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Arg& described = arguments.described()[i];
    if (decision.casts(described))
      casts.push_back({arguments.label(i, positional, kwnames), described.dtype});
  }
  const auto [module, source] = py::module_::import("habana_mp._where")
                                    .attr("where")()
                                    .cast<std::pair<std::string, std::string>>();
  event.casts = casts;
  event.rule = *op.rule_text;
  event.module = module;
  event.source = source;
  record::write(event);
}

}  // namespace habana_mp
