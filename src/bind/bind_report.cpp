// The report for Python: opening and closing one, what it has counted as plain values
// (habana_mp/_report/values.py gives them names), and the modules whose forward runs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/python_error.h"
#include "bind/bind.h"
#include "convert/patched_op.h"
#include "evidence/numbers.h"
#include "probe/values.h"
#include "report/report.h"
#include "scope/module_calls.h"
#include "watch/observer.h"
#include "watch/where.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

using report::SiteId;

// Names of the dtypes among the bits.
py::list dtypes_in(unsigned bits) {
  py::list names;
  for (const DTypeRow& row : kDTypes) {
    if ((bits & dtype_bit(row.dtype)) != 0) names.append(row.name);
  }
  return names;
}

py::tuple named_site(const report::Sites& sites, SiteId id) {
  return py::make_tuple(sites[id].op, sites[id].module);
}

py::tuple error_values(const report::Error& error) {
  return py::make_tuple(error.squares, error.reference_squares, error.largest,
                        error.reference_largest, error.lost);
}

// Calls that were not measured, by the reason.
template <typename Counts>
py::dict unmeasured_values(const Counts& counts) {
  py::dict found;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) found[report::kUnmeasuredNames[i]] = counts[i];
  }
  return found;
}

// What was measured of the numbers of a row; None where nothing was.
py::object values_of(const report::Values& values) {
  if (values.calls + values.backward_calls + values.projections + values.range.numbers == 0)
    return py::none();
  const report::Range& range = values.range;
  const report::Absorbed& absorbed = values.absorbed;
  return py::make_tuple(
      values.calls, error_values(values.ran), error_values(values.low),
      py::make_tuple(range.numbers, range.largest, range.smallest, range.over_float16,
                     range.under_float16, range.under_e4m3, range.under_e5m2),
      py::make_tuple(absorbed.sums, absorbed.lost, absorbed.bfloat16, absorbed.float16,
                     absorbed.e4m3, absorbed.e5m2),
      values.backward_calls, error_values(values.backward), values.changes, values.change_ran,
      values.change_low, values.ran_ns, values.other_ns, values.projections, values.projected_ran,
      values.projected_low);
}

// Bytes of results, by dtype.
py::dict made_by(const report::Row& row) {
  py::dict made;
  for (const DTypeRow& dtype : kDTypes) {
    const std::uint64_t bytes = row.made[static_cast<std::size_t>(dtype.dtype)];
    if (bytes != 0 && dtype.dtype != DType::Other) made[dtype.name] = bytes;
  }
  return made;
}

py::list named_rows(const watch::Snapshot& now, std::vector<int>& row_of_site) {
  py::list rows;
  row_of_site.assign(now.sites.size(), -1);
  for (SiteId id = 1; id < now.sites.size() && id < now.report.row_count(); ++id) {
    const report::Row& row = now.report.row(id);
    if (row.calls == 0 && row.casts.empty()) continue;
    py::list casts;
    for (const report::CastCount& cast : row.casts) {
      casts.append(py::make_tuple(dtype_name(cast.from), dtype_name(cast.to), cast.count,
                                  cast.cached, cast.bytes, cast.ns, cast.backward,
                                  cast.backward_bytes, cast.backward_ns));
    }
    const report::Site& site = now.sites[id];
    row_of_site[id] = static_cast<int>(rows.size());
    rows.append(py::make_tuple(site.op, site.module, static_cast<int>(site.front_end),
                               site.policy == nullptr ? std::string() : site.policy->name(),
                               report::kOutcomeNames[static_cast<std::size_t>(site.outcome)],
                               site.rule, site.source, row.calls, row.ns, row.cast_ns,
                               dtypes_in(row.input_dtypes), dtypes_in(row.ran), casts, made_by(row),
                               values_of(now.report.values(id)),
                               unmeasured_values(now.report.values(id).unmeasured),
                               unmeasured_values(now.report.values(id).unmeasured_backward)));
  }
  return rows;
}

// The policies of the rows, each with the front end that it was in force for.
py::list policies_of(const watch::Snapshot& now) {
  std::set<std::pair<std::string, report::FrontEnd>> known;
  py::list policies;
  for (SiteId id = 1; id < now.sites.size() && id < now.report.row_count(); ++id) {
    const report::Site& site = now.sites[id];
    if (now.report.row(id).calls == 0 || site.policy == nullptr) continue;
    if (!known.emplace(site.policy->text(), site.in_force).second) continue;
    policies.append(py::make_tuple(std::const_pointer_cast<Policy>(site.policy),
                                   static_cast<int>(site.in_force)));
  }
  return policies;
}

// What a report has counted, by the names that habana_mp/_report/values.py reads.
py::dict values(const report::Report& report) {
  const watch::Snapshot now = watch::snapshot_of(report);
  std::vector<int> row_of_site;
  py::dict result;
  result["rows"] = named_rows(now, row_of_site);
  py::list ping_pong;
  for (const auto& [key, seen] : now.report.ping_pong()) {
    py::list sites;
    for (const SiteId site : now.paths.sites(key.path)) sites.append(named_site(now.sites, site));
    sites.append(named_site(now.sites, key.site));
    const report::Paths::Step& step = now.paths[key.path];
    ping_pong.append(
        py::make_tuple(sites, dtype_name(step.from), dtype_name(step.to), seen.count, seen.ns));
  }
  result["policies"] = policies_of(now);
  result["ping_pong"] = ping_pong;
  py::list recast;
  for (const auto& [key, seen] : now.report.recast()) {
    py::list sites;
    for (const SiteId site : seen.sites) sites.append(named_site(now.sites, site));
    recast.append(py::make_tuple(named_site(now.sites, key.maker), sites, dtype_name(key.from),
                                 dtype_name(key.to), seen.times, seen.needed, seen.bytes, seen.ns));
  }
  result["recast"] = recast;
  py::list moments;
  for (const report::Moment& moment : now.report.moments()) {
    moments.append(py::make_tuple(moment.start_ns, moment.ns, row_of_site[moment.site],
                                  dtype_name(moment.from), dtype_name(moment.to),
                                  static_cast<int>(moment.kind)));
  }
  result["moments"] = moments;
  py::list edges;
  for (const auto& [key, edge] : now.report.edges()) {
    if (row_of_site[key.site] < 0) continue;
    const int maker = key.maker == report::kNone ? -1 : row_of_site[key.maker];
    edges.append(py::make_tuple(maker, row_of_site[key.site], dtype_name(key.dtype), edge.count,
                                edge.numbers));
  }
  result["edges"] = edges;
  result["optimizer_ns"] = now.report.optimizer_ns();
  result["stride"] = now.report.stride();
  result["backward_ns"] = now.report.backward_ns();
  result["bytes"] = now.report.bytes();
  return result;
}

py::dict close(const std::shared_ptr<report::Report>& report) {
  // Read first: the next listener begins its sites anew.
  py::dict last = values(*report);
  probe::close_report(*report);
  return last;
}

// What a queue has kept, as habana_mp/_watch/listener.py names it.
py::list take_calls(report::CallQueue& queue) {
  py::list calls;
  for (const report::EndedCall& call : watch::take_calls(queue)) {
    py::list casts;
    for (const report::Cast& cast : call.casts) {
      casts.append(py::make_tuple(dtype_name(cast.from), dtype_name(cast.to), cast.cached,
                                  cast.bytes, cast.ns));
    }
    const report::Site& site = call.site;
    calls.append(py::make_tuple(site.op, site.module, static_cast<int>(site.front_end),
                                site.policy == nullptr ? std::string() : site.policy->name(),
                                report::kOutcomeNames[static_cast<std::size_t>(site.outcome)],
                                site.rule, call.ns, dtypes_in(call.input_dtypes),
                                dtypes_in(call.ran), casts,
                                py::make_tuple(call.first_node, call.last_node)));
  }
  return calls;
}

}  // namespace

void bind_report(py::module_& module) {
  py::class_<report::Report, std::shared_ptr<report::Report>>(module, "Report");
  module.def(
      "open_report",
      [](bool errors, bool what_if, const std::string& low, bool own_thread) {
        return probe::open_report({errors, what_if, low_dtype_named(low)}, own_thread);
      },
      py::arg("errors") = false, py::arg("what_if") = false, py::arg("low") = "bfloat16",
      py::arg("own_thread") = false);
  module.def("begin_projection", &probe::begin_projection);
  module.def("end_projection", &probe::end_projection);
  module.def("sum_of_squares", &evidence::sum_of_squares, py::arg("numbers"));
  module.def("close_report", &close, py::arg("report"));
  module.def("report_values", &values, py::arg("report"));
  listen::observer = &watch::observer();
  set_module_watch({watch::enter_module, watch::leave_module});
  module.def("set_in_optimizer", &watch::set_in_optimizer, py::arg("inside"));
  module.def("reporting", &watch::watching);
  py::class_<report::CallQueue, std::shared_ptr<report::CallQueue>>(module, "CallQueue")
      .def(py::init<>())
      .def("open", [](const std::shared_ptr<report::CallQueue>& self) { watch::listen(self); })
      .def("close", [](const report::CallQueue& self) { watch::unlisten(self); })
      .def("take", &take_calls)
      .def_property_readonly("lost", &report::CallQueue::lost);
  module.def("set_where", &watch::set_where, py::arg("where"), py::arg("source"), py::arg("path"));
}

}  // namespace habana_mp
