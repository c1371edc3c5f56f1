// What looks at the numbers of calls, for habana_mp/_evidence/.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "cast/dtypes.h"
#include "evidence/repeatable.h"
#include "evidence/rerun.h"
#include "policy/policy.h"
#include "probe/comparison.h"
#include "probe/nonfinite.h"
#include "watch/probe.h"

namespace py = pybind11;

namespace habana_mp {
namespace {

std::vector<at::Tensor> tensors_of(const py::list& list) {
  std::vector<at::Tensor> tensors;
  for (const py::handle& tensor : list) tensors.push_back(tensor.cast<at::Tensor>());
  return tensors;
}

// What runs until it is stopped, or until Python lets this go: an interrupt may come anywhere.
class Session {
 public:
  explicit Session(std::function<void()> end) : end_(std::move(end)) {}
  ~Session() { end(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void end() {
    const auto end = std::exchange(end_, nullptr);
    if (end) end();
  }

 private:
  std::function<void()> end_;
};

// What find_nonfinite() looks for, by the names that habana_mp/_evidence/nonfinite.py reads; None
// where all is finite.
py::object found_nonfinite(const py::list& returned) {
  const std::vector<at::Tensor> tensors = tensors_of(returned);
  const auto found = [&] {
    const py::gil_scoped_release no_gil;
    return probe::stop_finding(tensors);
  }();
  if (!found) return py::none();
  py::list given;
  for (const probe::GivenTensor& tensor : found->given) {
    given.append(py::make_tuple(tensor.dtype, tensor.sizes, tensor.smallest, tensor.largest));
  }
  const report::Site& site = found->site;
  return py::make_tuple(site.op, site.module, site.rule, site.source,
                        site.policy == nullptr ? std::string() : site.policy->name(), found->inner,
                        found->backward, found->nan, found->dtype, found->finite_in_float32, given);
}

// A recording in plain values, which another process makes it of again; what tensors it kept of
// this one is left out.
py::tuple plain(const evidence::Digest& digest) {
  const auto* bytes = reinterpret_cast<const char*>(digest.sample.data());
  return py::make_tuple(digest.hash, static_cast<int>(digest.dtype), digest.sizes,
                        py::bytes(bytes, digest.sample.size() * sizeof(float)));
}

evidence::Digest digest_from(const py::handle& value) {
  const auto [hash, dtype, sizes, bytes] =
      value.cast<std::tuple<std::uint64_t, int, std::vector<std::int64_t>, std::string>>();
  evidence::Digest digest{hash, static_cast<at::ScalarType>(dtype), sizes, {}};
  digest.sample.resize(bytes.size() / sizeof(float));
  std::memcpy(digest.sample.data(), bytes.data(), digest.sample.size() * sizeof(float));
  return digest;
}

py::list plain(const std::vector<evidence::Digest>& digests) {
  py::list list;
  for (const evidence::Digest& digest : digests) list.append(plain(digest));
  return list;
}

std::vector<evidence::Digest> digests_from(const py::handle& values) {
  std::vector<evidence::Digest> digests;
  for (const py::handle& value : values) digests.push_back(digest_from(value));
  return digests;
}

py::list plain_sites(const probe::Recording& recording) {
  py::list sites;
  for (const report::Site& site : recording.sites) {
    sites.append(py::make_tuple(site.op, site.module, site.rule, site.source));
  }
  return sites;
}

py::tuple plain(const probe::Recording& recording) {
  py::list calls;
  for (const probe::RecordedCall& call : recording.calls) {
    py::list arguments;
    for (const probe::RecordedArgument& each : call.arguments) {
      arguments.append(py::make_tuple(each.hash, static_cast<int>(each.ran), each.maker,
                                      each.weight, each.seen, each.sizes));
    }
    calls.append(py::make_tuple(call.site, call.inner, call.backward, call.outer, arguments,
                                call.constants, plain(call.results)));
  }
  py::list gradients;
  for (const probe::RecordedGradient& each : recording.gradients) {
    gradients.append(py::make_tuple(each.weight, plain(each.digest)));
  }
  return py::make_tuple(plain_sites(recording), calls, recording.lost, recording.losses, gradients,
                        plain(recording.returned));
}

std::shared_ptr<probe::Recording> recording_from(const py::tuple& values) {
  auto recording = std::make_shared<probe::Recording>();
  for (const py::handle& value : values[0]) {
    const auto site = value.cast<std::array<std::string, 4>>();
    recording->sites.push_back(
        {.op = site[0], .module = site[1], .rule = site[2], .source = site[3]});
  }
  for (const py::handle& value : values[1]) {
    const auto fields = value.cast<py::tuple>();
    probe::RecordedCall& call = recording->calls.emplace_back();
    call.site = fields[0].cast<report::SiteId>();
    if (call.site >= recording->sites.size()) throw py::value_error("not a recording of habana_mp");
    call.inner = fields[1].cast<std::string>();
    call.backward = fields[2].cast<bool>();
    call.outer = fields[3].cast<std::int64_t>();
    for (const py::handle& argument : fields[4]) {
      const auto [hash, ran, maker, weight, seen, sizes] =
          argument.cast<std::tuple<std::uint64_t, int, std::int64_t, std::int64_t, bool,
                                   std::vector<std::int64_t>>>();
      call.arguments.push_back(
          {hash, static_cast<at::ScalarType>(ran), maker, weight, seen, sizes});
    }
    call.constants = fields[5].cast<std::string>();
    call.results = digests_from(fields[6]);
  }
  recording->lost = values[2].cast<std::uint64_t>();
  recording->losses = values[3].cast<std::vector<double>>();
  for (const py::handle& value : values[4]) {
    const auto fields = value.cast<py::tuple>();
    recording->gradients.push_back({fields[0].cast<std::int64_t>(), digest_from(fields[1])});
  }
  recording->returned = digests_from(values[5]);
  return recording;
}

// The calls of a run, by the names that habana_mp/_evidence/comparison.py gives them.
py::list named_calls(const probe::Recording& recording) {
  py::list calls;
  for (const probe::RecordedCall& call : recording.calls) {
    std::vector<std::int64_t> makers;
    unsigned ran = 0;
    for (const probe::RecordedArgument& each : call.arguments) {
      makers.push_back(each.maker);
      ran |= dtype_bit(dtype_of_type(each.ran));
    }
    py::list dtypes;
    for (const DTypeRow& row : kDTypes) {
      if ((ran & dtype_bit(row.dtype) & kFloatingDTypes) != 0) dtypes.append(row.name);
    }
    calls.append(py::make_tuple(call.site, call.inner, call.backward, call.outer, makers, dtypes));
  }
  return calls;
}

py::dict run_of(const probe::Recording& recording) {
  py::dict run;
  run["sites"] = plain_sites(recording);
  run["calls"] = named_calls(recording);
  run["lost"] = recording.lost;
  run["losses"] = recording.losses;
  return run;
}

py::object stop_comparing(const py::list& returned) {
  const std::vector<at::Tensor> tensors = tensors_of(returned);
  const std::optional<probe::Comparison> ended = [&] {
    const py::gil_scoped_release no_gil;
    return probe::comparer().stop_comparing(tensors);
  }();
  if (!ended) return py::none();
  const probe::Comparison& found = *ended;
  py::list compared;
  for (const probe::ComparedCall& call : found.calls) {
    py::list arguments;
    for (const auto& each : call.arguments) {
      arguments.append(py::make_tuple(each.maker, each.first_maker));
    }
    compared.append(py::make_tuple(static_cast<int>(call.difference), call.match, call.made,
                                   call.total, arguments, call.seen,
                                   report::kUnmeasuredNames[static_cast<std::size_t>(call.why)]));
  }
  py::dict result;
  result["first"] = run_of(*found.first);
  result["second"] = run_of(*found.second);
  result["compared"] = compared;
  result["changes"] = found.changes;
  result["gradients"] = py::make_tuple(found.gradients, found.gradient_error, found.same_gradients);
  result["returned"] =
      py::make_tuple(found.first->returned.size(), found.second->returned.size(),
                     evidence::distance(found.first->returned, found.second->returned),
                     evidence::same_bits(found.first->returned, found.second->returned));
  return result;
}

}  // namespace

void bind_probe(py::module_& module) {
  py::class_<probe::Recording, std::shared_ptr<probe::Recording>>(module, "Recording")
      .def(py::pickle([](const probe::Recording& recording) { return plain(recording); },
                      [](const py::tuple& values) { return recording_from(values); }));
  module.def(
      "hash_of_numbers", [](const at::Tensor& tensor) { return evidence::hash_of(tensor); },
      py::arg("tensor"), "The same for the same bits; 0 where they cannot be read");
  module.def(
      "probe_name",
      [] {
        const watch::Probe* looking = watch::probe();
        return looking == nullptr ? std::string() : std::string(looking->name());
      },
      "Of what looks at the numbers of calls; empty where nothing does");
  module.def(
      "copied_unseen",
      [](const at::Tensor& tensor) {
        const evidence::OutOfSight out_of_sight;
        return tensor.detach().clone();
      },
      py::arg("tensor"), "A copy that no listener and no probe hears of");
  py::class_<Session>(module, "ProbeSession").def("end", &Session::end);
  module.def("start_recording", [] {
    probe::recorder().start();
    return std::make_unique<Session>([] { probe::recorder().stop({}); });
  });
  module.def(
      "stop_recording",
      [](const py::list& returned) {
        const std::vector<at::Tensor> tensors = tensors_of(returned);
        const py::gil_scoped_release no_gil;
        return probe::recorder().stop(tensors);
      },
      py::arg("returned"));
  module.def(
      "start_comparing",
      [](const std::shared_ptr<probe::Recording>& first) {
        probe::comparer().start(first);
        return std::make_unique<Session>([] { probe::comparer().stop_comparing({}); });
      },
      py::arg("first"));
  module.def("compares_backward", [] { return probe::comparer().ran_backward(); });
  module.def("begin_compared_projection", [] { probe::comparer().begin_projection(); });
  module.def("end_compared_projection", [] { probe::comparer().end_projection(); });
  module.def("stop_comparing", &stop_comparing, py::arg("returned"));
  module.def(
      "why_not_run_again",
      [](const std::string& name, const std::string& overload) {
        const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
        if (!op) throw py::value_error("no op " + name);
        return report::kUnmeasuredNames[static_cast<std::size_t>(evidence::why_not_again(*op))];
      },
      py::arg("name"), py::arg("overload"), "\"none\" of an op that may be run again");
  module.def("start_finding", &probe::start_finding);
  module.def("stop_finding", &found_nonfinite, py::arg("returned"));
}

}  // namespace habana_mp
