// What looks at the numbers of calls, for habana_mp/_evidence/.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bind/module.h"
#include "bind/named.h"
#include "cast/dtypes.h"
#include "evidence/rerun.h"
#include "policy/policy.h"
#include "probe/comparison.h"
#include "probe/nonfinite.h"
#include "watch/probe.h"

namespace py = pybind11;

namespace habana_mp {

using namespace probe;
using evidence::Choices;
using evidence::Digest;
using report::Site;

// What Python reads, and what the file of a recording holds, in this order (habana_mp/_evidence/
// recordings/form.py): the tensors that it kept of this process are left out.
template <>
inline constexpr auto report::kFields<Site> = std::tuple{Field{"op", &Site::op},
                                                         Field{"module", &Site::module},
                                                         Field{"rule", &Site::rule},
                                                         Field{"source", &Site::source},
                                                         Field{"decision", &Site::outcome},
                                                         Field{"instead_of", &Site::instead_of}};
template <>
inline constexpr auto report::kFields<Digest> = std::tuple{
    Field{"hash", &Digest::hash}, Field{"dtype", &Digest::dtype}, Field{"sizes", &Digest::sizes},
    Field{"norm", &Digest::norm}, Field{"step", &Digest::step},   Field{"sample", &Digest::sample}};
template <>
inline constexpr auto report::kFields<Choices> =
    std::tuple{Field{"numbers", &Choices::numbers}, Field{"width", &Choices::width}};
template <>
inline constexpr auto report::kFields<RecordedArgument> =
    std::tuple{Field{"hash", &RecordedArgument::hash},   Field{"ran", &RecordedArgument::ran},
               Field{"maker", &RecordedArgument::maker}, Field{"weight", &RecordedArgument::weight},
               Field{"seen", &RecordedArgument::seen},   Field{"sizes", &RecordedArgument::sizes}};
template <>
inline constexpr auto report::kFields<RecordedCall> = std::tuple{
    Field{"site", &RecordedCall::site},           Field{"inner", &RecordedCall::inner},
    Field{"backward", &RecordedCall::backward},   Field{"moves", &RecordedCall::moves},
    Field{"outer", &RecordedCall::outer},         Field{"arguments", &RecordedCall::arguments},
    Field{"constants", &RecordedCall::constants}, Field{"results", &RecordedCall::results},
    Field{"choices", &RecordedCall::choices}};
template <>
inline constexpr auto report::kFields<RecordedGradient> = std::tuple{
    Field{"weight", &RecordedGradient::weight}, Field{"digest", &RecordedGradient::digest}};
template <>
inline constexpr auto report::kFields<Recording> =
    std::tuple{Field{"sites", &Recording::sites},         Field{"calls", &Recording::calls},
               Field{"lost", &Recording::lost},           Field{"losses", &Recording::losses},
               Field{"gradients", &Recording::gradients}, Field{"returned", &Recording::returned}};

namespace {

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

// A recording as its file has it: rows of fields in their order (habana_mp/_evidence/recordings/
// form.py), and beside them the samples and the choices.
class Rows {
 public:
  explicit Rows(std::size_t most_choices) : most_choices_(most_choices) {}

  template <typename T>
  void add(py::list& row, const T& value) {
    if constexpr (std::is_same_v<T, Choices>) {
      const bool room = choices_.size() < most_choices_;
      if (room) choices_.insert(choices_.end(), value.numbers.begin(), value.numbers.end());
      row.append(room ? value.numbers.size() : 0);
      row.append(value.width);
    } else if constexpr (std::is_same_v<T, std::vector<float>>) {
      ++digests_;
      samples_.insert(samples_.end(), value.begin(), value.end());
      row.append(value.size());
    } else if constexpr (std::is_same_v<T, double>) {
      row.append(std::isfinite(value) ? py::object(py::float_(value)) : py::none());
    } else if constexpr (Declared<T>) {
      py::list fields;
      const auto each = [&](const auto& field) { add(fields, value.*field.member); };
      std::apply([&](const auto&... field) { (each(field), ...); }, report::kFields<T>);
      row.append(std::move(fields));
    } else if constexpr (kIsList<T>) {
      row.append(list_of(value, value.size()));
    } else {
      row.append(named(value));
    }
  }

  template <typename T>
  py::list list_of(const std::vector<T>& values, std::size_t most) {
    py::list list;
    for (std::size_t i = 0; i < std::min(most, values.size()); ++i) add(list, values[i]);
    return list;
  }

  py::tuple with_numbers(const py::dict& rows) const {
    return py::make_tuple(rows, bytes_of(samples_), bytes_of(choices_), digests_);
  }

 private:
  template <typename T>
  static py::bytes bytes_of(const std::vector<T>& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
  }

  std::size_t most_choices_;
  std::size_t digests_ = 0;
  std::vector<float> samples_{};
  std::vector<std::int64_t> choices_{};
};

py::tuple rows_of(const Recording& recording, std::size_t most_calls, std::size_t most_choices) {
  Rows rows(most_choices);
  const std::size_t all = recording.calls.size();
  py::dict named_rows;
  named_rows["sites"] = rows.list_of(recording.sites, recording.sites.size());
  named_rows["calls"] = rows.list_of(recording.calls, most_calls);
  named_rows["lost"] = recording.lost + all - std::min(all, most_calls);
  named_rows["gradients"] = rows.list_of(recording.gradients, recording.gradients.size());
  named_rows["returned"] = rows.list_of(recording.returned, recording.returned.size());
  return rows.with_numbers(named_rows);
}

std::shared_ptr<Recording> recording_from(const py::dict& values) {
  auto recording = std::make_shared<Recording>();
  read_named(values, *recording);
  for (const RecordedCall& call : recording->calls) {
    if (call.site >= recording->sites.size()) throw py::value_error("not a recording of habana_mp");
  }
  return recording;
}

std::vector<std::int64_t> makers_of(const RecordedCall& call) {
  std::vector<std::int64_t> makers;
  for (const RecordedArgument& each : call.arguments) makers.push_back(each.maker);
  return makers;
}

std::vector<std::vector<std::int64_t>> sizes_of(const RecordedCall& call) {
  std::vector<std::vector<std::int64_t>> sizes;
  for (const Digest& each : call.results) sizes.push_back(each.sizes);
  return sizes;
}

// The floating dtypes that a call got its arguments in.
py::list dtypes_of(const RecordedCall& call) {
  unsigned ran = 0;
  for (const RecordedArgument& each : call.arguments) {
    ran |= dtype_bit(dtype_of_type(each.ran));
  }
  return dtypes_in(ran & kFloatingDTypes);
}

// The modules are those of the sites.
Terms terms_of(const std::shared_ptr<Recording>& first, std::vector<std::string> modules,
               double tolerance) {
  if (first != nullptr && !modules.empty() && modules.size() != first->sites.size())
    throw py::value_error("one module for each site of the first run");
  return {std::move(modules), tolerance};
}

// Runs without the GIL what looks at all that a step has returned.
template <typename Stop>
auto stopped(const py::list& returned, Stop stop) {
  std::vector<at::Tensor> tensors;
  for (const py::handle& tensor : returned) tensors.push_back(tensor.cast<at::Tensor>());
  const py::gil_scoped_release no_gil;
  return stop(tensors);
}

void bind_recording(py::module_& module) {
  py::class_<Site> site(module, "Site");
  for_each_field(report::kFields<Site>, [&](const auto& field) {
    site.def_property_readonly(
        field.name, [member = field.member](const Site& self) { return named(self.*member); });
  });
  site.def_property_readonly("policy", [](const Site& self) {
    return self.policy == nullptr ? std::string() : self.policy->name();
  });
  py::class_<RecordedCall>(module, "RecordedCall")
      .def_readonly("site", &RecordedCall::site)
      .def_readonly("inner", &RecordedCall::inner)
      .def_readonly("backward", &RecordedCall::backward)
      .def_readonly("moves", &RecordedCall::moves)
      .def_property_readonly("rounding", &rounding_of)
      .def_readonly("outer", &RecordedCall::outer)
      .def_property_readonly("makers", &makers_of)
      .def_property_readonly("sizes", &sizes_of)
      .def_property_readonly("dtypes", &dtypes_of);
  py::class_<Recording, std::shared_ptr<Recording>>(module, "Recording")
      .def_readonly("sites", &Recording::sites)
      .def_readonly("calls", &Recording::calls)
      .def_readonly("lost", &Recording::lost)
      .def_readonly("losses", &Recording::losses)
      .def_property_readonly("returned", [](const Recording& self) { return self.returned.size(); })
      .def("rows", &rows_of, py::arg("most_calls"), py::arg("most_choices"),
           "For its file: the rows, the samples, the choices, and how many digests have a sample");
  module.def("recording_of", &recording_from, py::arg("values"),
             "ValueError where the values are not those of a recording");
}

void bind_comparison(py::module_& module) {
  using Argument = ComparedCall::Argument;
  py::class_<Argument>(module, "ComparedArgument")
      .def_readonly("maker", &Argument::maker)
      .def_readonly("first_maker", &Argument::first_maker);
  py::class_<ComparedCall>(module, "ComparedCall")
      .def_property_readonly(
          "kind",
          [](const ComparedCall& self) {
            return probe::kDifferenceNames[static_cast<std::size_t>(self.difference)];
          })
      .def_property_readonly("partner",
                             [](const ComparedCall& self) {
                               return probe::kPartnerNames[static_cast<std::size_t>(self.partner)];
                             })
      .def_readonly("match", &ComparedCall::match)
      .def_readonly("more", &ComparedCall::more)
      .def_readonly("made", &ComparedCall::made)
      .def_readonly("total", &ComparedCall::total)
      .def_readonly("arguments", &ComparedCall::arguments)
      .def_readonly("seen", &ComparedCall::seen)
      .def_property_readonly("flips",
                             [](const ComparedCall& self) {
                               return py::make_tuple(self.flips.flipped, self.flips.choices);
                             })
      .def_property_readonly("why", [](const ComparedCall& self) {
        return report::kUnmeasuredNames[static_cast<std::size_t>(self.why)];
      });
  py::class_<Comparison>(module, "ComparedRuns")
      .def_property_readonly(
          "first",
          [](const Comparison& self) { return std::const_pointer_cast<Recording>(self.first); })
      .def_property_readonly(
          "second",
          [](const Comparison& self) { return std::const_pointer_cast<Recording>(self.second); })
      .def_readonly("calls", &Comparison::calls)
      .def_readonly("changes", &Comparison::changes)
      .def_readonly("gradients", &Comparison::gradients)
      .def_readonly("gradient_error", &Comparison::gradient_error)
      .def_readonly("same_gradients", &Comparison::same_gradients)
      .def_property_readonly("result_error",
                             [](const Comparison& self) {
                               return evidence::distance(self.first->returned,
                                                         self.second->returned);
                             })
      .def_property_readonly("same_results", [](const Comparison& self) {
        return evidence::same_bits(self.first->returned, self.second->returned);
      });
}

void bind_nonfinite(py::module_& module) {
  py::class_<GivenTensor>(module, "GivenTensor")
      .def_readonly("dtype", &GivenTensor::dtype)
      .def_readonly("sizes", &GivenTensor::sizes)
      .def_readonly("smallest", &GivenTensor::smallest)
      .def_readonly("largest", &GivenTensor::largest);
  py::class_<Nonfinite>(module, "Nonfinite")
      .def_readonly("site", &Nonfinite::site)
      .def_readonly("inner", &Nonfinite::inner)
      .def_readonly("backward", &Nonfinite::backward)
      .def_readonly("nan", &Nonfinite::nan)
      .def_readonly("dtype", &Nonfinite::dtype)
      .def_readonly("casts", &Nonfinite::casts)
      .def_readonly("ran_in_float32", &Nonfinite::ran_in_float32)
      .def_readonly("finite_in_float32", &Nonfinite::finite_in_float32)
      .def_readonly("largest_in_float32", &Nonfinite::largest_in_float32)
      .def_readonly("loss_scale", &Nonfinite::loss_scale)
      .def_readonly("from_outside", &Nonfinite::from_outside)
      .def_readonly("given", &Nonfinite::given);
}

}  // namespace

void bind_probe(py::module_& module) {
  bind_recording(module);
  bind_comparison(module);
  bind_nonfinite(module);
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
  module.def(
      "start_recording",
      [](bool by_compare) {
        probe::recorder().start(by_compare ? "compare" : "record");
        return std::make_unique<Session>([] { probe::recorder().stop({}); });
      },
      py::arg("by_compare"));
  module.def(
      "stop_recording",
      [](const py::list& returned) {
        return stopped(returned,
                       [](const auto& tensors) { return probe::recorder().stop(tensors); });
      },
      py::arg("returned"));
  module.def(
      "start_comparing",
      [](const std::shared_ptr<Recording>& first, std::vector<std::string> modules,
         double tolerance) {
        probe::comparer().start(first, terms_of(first, std::move(modules), tolerance));
        return std::make_unique<Session>([] { probe::comparer().stop_comparing({}); });
      },
      py::arg("first"), py::arg("modules"), py::arg("tolerance"));
  module.def(
      "compared",
      [](const std::shared_ptr<Recording>& first, const std::shared_ptr<Recording>& second,
         std::vector<std::string> modules, double tolerance) {
        return probe::compared(first, second, terms_of(first, std::move(modules), tolerance));
      },
      py::arg("first"), py::arg("second"), py::arg("modules"), py::arg("tolerance"));
  module.def("compares_backward", [] { return probe::comparer().ran_backward(); });
  module.def("begin_compared_projection", [] { probe::comparer().begin_projection(); });
  module.def("end_compared_projection", [] { probe::comparer().end_projection(); });
  module.def(
      "stop_comparing",
      [](const py::list& returned) {
        return stopped(returned, [](const auto& tensors) {
          return probe::comparer().stop_comparing(tensors);
        });
      },
      py::arg("returned"));
  module.def(
      "why_not_run_again",
      [](const std::string& name, const std::string& overload) {
        const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
        if (!op) throw py::value_error("no op " + name);
        return report::kUnmeasuredNames[static_cast<std::size_t>(evidence::why_not_again(*op))];
      },
      py::arg("name"), py::arg("overload"), "\"none\" of an op that may be run again");
  module.def("start_finding", &probe::start_finding);
  module.def(
      "stop_finding",
      [](const py::list& returned) { return stopped(returned, &probe::stop_finding); },
      py::arg("returned"), "None where all is finite");
}

}  // namespace habana_mp
