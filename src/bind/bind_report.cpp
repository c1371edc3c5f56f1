// The report for Python: opening and closing one, what it has counted as plain values, and the
// modules whose forward runs.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/name_numbers.h"
#include "bind/module.h"
#include "bind/named.h"
#include "convert/patched_op.h"
#include "evidence/numbers.h"
#include "listen/child_casts.h"
#include "probe/choices/margins.h"
#include "probe/values.h"
#include "report/report.h"
#include "scope/module_calls.h"
#include "watch/observer.h"
#include "watch/where.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

using namespace py::literals;
using report::SiteId;

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

py::dict op_and_module(const report::Site& site) {
  return py::dict("op"_a = site.op, "module"_a = site.module);
}

// Calls that were not measured, by the reason.
template <typename Counts>
py::dict unmeasured(const Counts& counts) {
  py::dict found;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) found[report::kUnmeasuredNames[i]] = counts[i];
  }
  return found;
}

// Five digits of each: more than passes can tell.
py::list digits_of(const report::Signed::Passes& passes) {
  py::list found;
  for (const double change : passes) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.5g", change);
    found.append(std::strtod(text.data(), nullptr));
  }
  return found;
}

py::dict passes_of(const report::Signed& passes) {
  return py::dict("ran"_a = digits_of(passes.ran), "low"_a = digits_of(passes.low),
                  "rounding"_a = digits_of(passes.rounding));
}

// What the errors of a row change each loss by, and margins of choices.
py::list losses_of(const report::Report& report, SiteId site) {
  py::list found;
  for (const auto& each : report.changes(site)) {
    py::dict loss = named<true>(each.changes);
    loss["loss"] = name_of(each.line);
    loss["choice"] = std::ranges::any_of(report.losses(), [&](const auto& known) {
      return known.line == each.line && known.chose != report::kNone;
    });
    loss["passes"] = passes_of(each.passes);
    found.append(loss);
  }
  return found;
}

// What a row would be in 8 bits.
py::list formats_of(const report::Report& report, SiteId site) {
  py::list found;
  const auto& formats = report.values(site).formats;
  for (std::size_t i = 0; i < formats.size(); ++i) {
    if (formats[i].calls == 0) continue;
    py::list losses;
    for (const auto& each : report.changes(site)) {
      py::dict loss = named<true>(each.formats[i]);
      loss["loss"] = name_of(each.line);
      loss["passes"] = digits_of(each.passes.formats[i]);
      losses.append(loss);
    }
    py::dict format = named<true>(formats[i]);
    format["format"] = action_name(report::kFormats[i]);
    format["losses"] = losses;
    format["passes"] = digits_of(report.projected(site).formats[i]);
    found.append(format);
  }
  return found;
}

void add_values(py::dict& row, const report::Report& report, SiteId site) {
  const report::Values& values = report.values(site);
  const py::list losses = losses_of(report, site);
  const py::dict of_calls = unmeasured(values.unmeasured);
  const py::dict of_backward = unmeasured(values.unmeasured_backward);
  if (!of_calls.empty()) row["unmeasured"] = of_calls;
  if (!of_backward.empty()) row["unmeasured_backward"] = of_backward;
  const bool measured = values.calls + values.backward_calls + values.projections +
                            values.range.numbers + values.choices !=
                        0;
  if (!measured && losses.empty()) return;
  row["values"] = named<true>(values);
  row["values"]["losses"] = losses;
  row["values"]["passes"] = passes_of(report.projected(site));
  row["values"]["formats"] = formats_of(report, site);
  row["values"]["unmeasured"] =
      std::reduce(values.unmeasured.begin(), values.unmeasured.end(), std::uint64_t{0});
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

py::list casts_of(const report::Row& row) {
  py::list casts;
  for (const report::CastCount& cast : row.casts) {
    casts.append(py::dict(
        "from"_a = dtype_name(cast.from), "to"_a = dtype_name(cast.to), "count"_a = cast.count,
        "cached"_a = cast.cached, "bytes"_a = cast.bytes, "seconds"_a = seconds(cast.ns),
        "backward"_a = py::dict("count"_a = cast.backward, "bytes"_a = cast.backward_bytes,
                                "seconds"_a = seconds(cast.backward_ns))));
  }
  return casts;
}

// What rows and calls have of their site.
py::dict of_site(const report::Site& site) {
  py::dict found = op_and_module(site);
  found["front_end"] = report::kFrontEndNames[static_cast<std::size_t>(site.front_end)];
  found["policy"] = site.policy == nullptr ? std::string() : site.policy->name();
  found["decision"] = name_of(site.outcome);
  found["rule"] = site.rule;
  found["instead_of"] = name_of(site.instead_of);
  return found;
}

py::list rows_of(const watch::Snapshot& now, std::vector<int>& row_of_site) {
  py::list rows;
  row_of_site.assign(now.sites.size(), -1);
  for (SiteId id = 1; id < now.sites.size() && id < now.report.row_count(); ++id) {
    const report::Row& counted = now.report.row(id);
    if (counted.calls == 0 && counted.casts.empty()) continue;
    row_of_site[id] = static_cast<int>(rows.size());
    py::dict row = of_site(now.sites[id]);
    row["source"] = now.sites[id].source;
    row["place"] = now.sites[id].place;
    row["calls"] = counted.calls;
    row["seconds"] = seconds(counted.ns);
    row["cast_seconds"] = seconds(counted.cast_ns);
    row["dtypes"] = dtypes_in(counted.input_dtypes);
    row["runs_in"] = dtypes_in(counted.ran);
    row["made_bytes"] = made_by(counted);
    row["casts"] = casts_of(counted);
    add_values(row, now.report, id);
    rows.append(row);
  }
  return rows;
}

// The policies of the rows, each with the front end that it was in force for, and its calls.
py::list policies_of(const watch::Snapshot& now) {
  using Known = std::pair<std::string, report::FrontEnd>;
  std::map<Known, std::uint64_t> calls;
  std::vector<std::pair<Known, std::shared_ptr<const Policy>>> found;  // in the order of the rows
  for (SiteId id = 1; id < now.sites.size() && id < now.report.row_count(); ++id) {
    const report::Site& site = now.sites[id];
    if (now.report.row(id).calls == 0 || site.policy == nullptr) continue;
    const Known key{site.policy->text(), site.in_force};
    if (!calls.contains(key)) found.emplace_back(key, site.policy);
    calls[key] += now.report.row(id).calls;
  }
  py::list policies;
  for (const auto& [key, policy] : found) {
    policies.append(
        py::dict("policy"_a = std::const_pointer_cast<Policy>(policy),
                 "front_end"_a = report::kFrontEndNames[static_cast<std::size_t>(key.second)],
                 "calls"_a = calls[key]));
  }
  return policies;
}

py::list ping_pong_of(const watch::Snapshot& now) {
  py::list chains;
  for (const auto& [key, seen] : now.report.ping_pong()) {
    const report::Paths::Step& step = now.paths[key.path];
    py::list ops;
    const auto add = [&](SiteId site, DType result) {
      py::dict op = op_and_module(now.sites[site]);
      op["dtype"] = dtype_name(result);
      ops.append(op);
    };
    for (const SiteId site : now.paths.sites(key.path)) add(site, step.to);
    add(key.site, step.from);
    const auto path = {dtype_name(step.from), dtype_name(step.to), dtype_name(step.from)};
    chains.append(py::dict("ops"_a = ops, "path"_a = std::vector<const char*>(path),
                           "count"_a = seen.count, "seconds"_a = seconds(seen.ns)));
  }
  return chains;
}

py::list recast_of(const watch::Snapshot& now) {
  py::list tensors;
  for (const auto& [key, seen] : now.report.recast()) {
    py::list sites;
    for (const SiteId site : seen.sites) sites.append(op_and_module(now.sites[site]));
    tensors.append(py::dict("maker"_a = op_and_module(now.sites[key.maker]), "sites"_a = sites,
                            "from"_a = dtype_name(key.from), "to"_a = dtype_name(key.to),
                            "times"_a = seen.times, "needed"_a = seen.needed,
                            "bytes"_a = seen.bytes, "seconds"_a = seconds(seen.ns)));
  }
  return tensors;
}

// The line of a loss; None for the outputs.
py::object name_or_outputs(std::uint32_t loss) {
  return loss == report::kOutputs ? py::object(py::none()) : py::object(py::str(name_of(loss)));
}

py::list reads_of(const watch::Snapshot& now, const std::vector<int>& row_of_site) {
  py::list reads;
  const auto row_of = [&](SiteId site) {
    if (site == report::kRoot) return -2;
    return site == report::kNone || site >= row_of_site.size() ? -1 : row_of_site[site];
  };
  for (const auto& [key, own] : now.report.reads()) {
    if (row_of(key.maker) < 0) continue;
    const py::object loss = name_or_outputs(key.loss);
    for (const auto& [readers, product] : own.products) {
      const int first = row_of(readers.first), second = row_of(readers.second);
      reads.append(py::make_tuple(row_of(key.maker), std::min(first, second),
                                  std::max(first, second), loss, product));
    }
  }
  return reads;
}

// What a report has counted, by the names of habana_mp/_report/data/.
py::dict values(const report::Report& report) {
  const watch::Snapshot now = watch::snapshot_of(report);
  std::vector<int> row_of_site;
  py::dict result;
  result["rows"] = rows_of(now, row_of_site);
  result["policies"] = policies_of(now);
  result["ping_pong"] = ping_pong_of(now);
  result["recast"] = recast_of(now);
  py::list events;
  for (const report::Moment& moment : now.report.moments()) {
    events.append(py::make_tuple(seconds(moment.start_ns), seconds(moment.ns),
                                 row_of_site[moment.site], dtype_name(moment.from),
                                 dtype_name(moment.to),
                                 report::kKindNames[static_cast<std::size_t>(moment.kind)]));
  }
  result["timeline"] = py::dict("stride"_a = now.report.stride(), "events"_a = events);
  py::list edges;
  for (const auto& [key, edge] : now.report.edges()) {
    if (row_of_site[key.site] < 0) continue;
    const int maker = key.maker == report::kNone ? -1 : row_of_site[key.maker];
    edges.append(py::make_tuple(maker, row_of_site[key.site], dtype_name(key.dtype), edge.count,
                                edge.numbers, edge.first, key.zero_dim));
  }
  result["edges"] = edges;
  result["reads"] = reads_of(now, row_of_site);
  result["compiled"] = now.report.compiled();
  result["optimizer_seconds"] = seconds(now.report.optimizer_ns());
  py::list losses;
  for (const report::Report::Loss& loss : now.report.losses()) {
    losses.append(py::dict("loss"_a = name_of(loss.line), "passes"_a = loss.passes));
    if (loss.chose == report::kNone || row_of_site[loss.chose] < 0) continue;
    py::list margins;
    for (const auto& [bin, count] : loss.choice.margins)
      margins.append(py::dict("bin"_a = bin, "count"_a = count));
    losses[losses.size() - 1]["choice"] =
        py::dict("row"_a = row_of_site[loss.chose], "margins"_a = margins,
                 "choices"_a = loss.choice.choices, "seen"_a = loss.choice.seen,
                 "measured"_a = loss.choice.measured, "otherwise"_a = loss.choice.otherwise);
  }
  result["losses"] = losses;
  py::list worth;
  for (const auto& [loss, known] : now.report.decided_by_choices())
    worth.append(py::dict("loss"_a = name_or_outputs(loss), "squares"_a = known.squares,
                          "otherwise"_a = known.otherwise));
  result["choices_worth"] = worth;
  result["backward_raised"] = now.report.backward_raised();
  result["backward_seconds"] = seconds(now.report.backward_ns());
  result["bytes"] = now.report.bytes();
  return result;
}

py::dict close(const std::shared_ptr<report::Report>& report) {
  // Read first: the next listener begins its sites anew.
  py::dict last = values(*report);
  probe::close_report(*report);
  return last;
}

// What a queue has kept, by the names of habana_mp/_watch/listener.py.
py::list take_calls(report::CallQueue& queue) {
  py::list calls;
  for (const report::EndedCall& call : watch::take_calls(queue)) {
    py::list casts;
    for (const report::Cast& cast : call.casts) {
      casts.append(py::dict("source"_a = dtype_name(cast.from), "target"_a = dtype_name(cast.to),
                            "cached"_a = cast.cached, "size"_a = cast.bytes,
                            "seconds"_a = seconds(cast.ns)));
    }
    py::dict found = of_site(call.site);
    found["seconds"] = seconds(call.ns);
    found["dtypes"] = dtypes_in(call.input_dtypes);
    found["runs_in"] = dtypes_in(call.ran);
    found["casts"] = casts;
    found["nodes"] = py::make_tuple(call.first_node, call.last_node);
    calls.append(found);
  }
  return calls;
}

}  // namespace

void bind_report(py::module_& module) {
  py::class_<report::Report, std::shared_ptr<report::Report>>(module, "Report");
  module.def(
      "open_report",
      [](bool errors, bool what_if, const std::string& low, bool own_thread,
         const std::vector<std::string>& formats) {
        report::Measure measure{errors, what_if, low_dtype_named(low)};
        for (std::size_t i = 0; i < report::kFormats.size(); ++i) {
          const bool asked = std::ranges::count(formats, action_name(report::kFormats[i])) != 0;
          measure.formats |= unsigned{asked} << i;
        }
        return probe::open_report(measure, own_thread);
      },
      py::arg("errors") = false, py::arg("what_if") = false, py::arg("low") = "bfloat16",
      py::arg("own_thread") = false, py::arg("formats") = std::vector<std::string>());
  module.def(
      "step_clock", [] { return seconds(now_ns() - aside_ns()); },
      "Seconds of a clock that stands while an instrument works");
  module.def("begin_projection", &probe::begin_projection);
  module.def("end_projection", &probe::end_projection);
  module.def(
      "reach_outputs",
      [](const std::vector<at::Tensor>& outputs, int passes) {
        probe::reach_outputs(outputs, passes);
      },
      py::arg("outputs"), py::arg("passes"), py::call_guard<py::gil_scoped_release>());
  module.def("begin_backward_at", &probe::begin_backward_at, py::arg("root"), py::arg("gradient"),
             py::call_guard<py::gil_scoped_release>());
  module.def("sum_of_squares", &evidence::sum_of_squares, py::arg("numbers"));
  module.def("close_report", &close, py::arg("report"));
  module.def("report_values", &values, py::arg("report"));
  module.def("casts_of_children", &listen::casts_of_children);
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
  module.def("set_where", &watch::set_where, py::arg("where"), py::arg("source"), py::arg("path"),
             py::arg("call"), py::arg("own"));
}

}  // namespace habana_mp
