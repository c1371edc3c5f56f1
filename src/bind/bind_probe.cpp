// What looks at the numbers of calls, for habana_mp/_evidence/.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/module.h"
#include "bind/named.h"
#include "cast/dtypes.h"
#include "evidence/repeatable.h"
#include "evidence/rerun.h"
#include "policy/policy.h"
#include "probe/comparison.h"
#include "probe/nonfinite.h"
#include "watch/probe.h"

namespace py = pybind11;

namespace habana_mp {

// What Python reads, and what the pickle of a recording holds: the tensors that it kept of this
// process are left out.
template <>
inline constexpr auto report::kFields<report::Site> =
    std::tuple{Field{"op", &Site::op}, Field{"module", &Site::module}, Field{"rule", &Site::rule},
               Field{"source", &Site::source}};
template <>
inline constexpr auto report::kFields<evidence::Digest> = std::tuple{
    Field{"hash", &evidence::Digest::hash}, Field{"dtype", &evidence::Digest::dtype},
    Field{"sizes", &evidence::Digest::sizes}, Field{"sample", &evidence::Digest::sample}};
template <>
inline constexpr auto report::kFields<evidence::Choices> = std::tuple{
    Field{"numbers", &evidence::Choices::numbers}, Field{"width", &evidence::Choices::width}};
template <>
inline constexpr auto report::kFields<probe::RecordedArgument> =
    std::tuple{Field{"hash", &probe::RecordedArgument::hash},
               Field{"ran", &probe::RecordedArgument::ran},
               Field{"maker", &probe::RecordedArgument::maker},
               Field{"weight", &probe::RecordedArgument::weight},
               Field{"seen", &probe::RecordedArgument::seen},
               Field{"sizes", &probe::RecordedArgument::sizes}};
template <>
inline constexpr auto report::kFields<probe::RecordedCall> =
    std::tuple{Field{"site", &probe::RecordedCall::site},
               Field{"inner", &probe::RecordedCall::inner},
               Field{"backward", &probe::RecordedCall::backward},
               Field{"outer", &probe::RecordedCall::outer},
               Field{"arguments", &probe::RecordedCall::arguments},
               Field{"constants", &probe::RecordedCall::constants},
               Field{"results", &probe::RecordedCall::results},
               Field{"choices", &probe::RecordedCall::choices}};
template <>
inline constexpr auto report::kFields<probe::RecordedGradient> =
    std::tuple{Field{"weight", &probe::RecordedGradient::weight},
               Field{"digest", &probe::RecordedGradient::digest}};
template <>
inline constexpr auto report::kFields<probe::Recording> =
    std::tuple{Field{"sites", &probe::Recording::sites},
               Field{"calls", &probe::Recording::calls},
               Field{"lost", &probe::Recording::lost},
               Field{"losses", &probe::Recording::losses},
               Field{"gradients", &probe::Recording::gradients},
               Field{"returned", &probe::Recording::returned}};

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

std::shared_ptr<probe::Recording> recording_from(const py::dict& values) {
  auto recording = std::make_shared<probe::Recording>();
  read_named(values, *recording);
  for (const probe::RecordedCall& call : recording->calls) {
    if (call.site >= recording->sites.size()) throw py::value_error("not a recording of habana_mp");
  }
  return recording;
}

std::vector<std::int64_t> makers_of(const probe::RecordedCall& call) {
  std::vector<std::int64_t> makers;
  for (const probe::RecordedArgument& each : call.arguments) makers.push_back(each.maker);
  return makers;
}

// The floating dtypes that a call got its arguments in.
py::list dtypes_of(const probe::RecordedCall& call) {
  unsigned ran = 0;
  for (const probe::RecordedArgument& each : call.arguments) {
    ran |= dtype_bit(dtype_of_type(each.ran));
  }
  return dtypes_in(ran & kFloatingDTypes);
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
  py::class_<report::Site>(module, "Site")
      .def_readonly("op", &report::Site::op)
      .def_readonly("module", &report::Site::module)
      .def_readonly("rule", &report::Site::rule)
      .def_readonly("source", &report::Site::source)
      .def_property_readonly("policy", [](const report::Site& self) {
        return self.policy == nullptr ? std::string() : self.policy->name();
      });
  py::class_<probe::RecordedCall>(module, "RecordedCall")
      .def_readonly("site", &probe::RecordedCall::site)
      .def_readonly("inner", &probe::RecordedCall::inner)
      .def_readonly("backward", &probe::RecordedCall::backward)
      .def_readonly("outer", &probe::RecordedCall::outer)
      .def_property_readonly("makers", &makers_of)
      .def_property_readonly("dtypes", &dtypes_of);
  py::class_<probe::Recording, std::shared_ptr<probe::Recording>>(module, "Recording")
      .def_readonly("sites", &probe::Recording::sites)
      .def_readonly("calls", &probe::Recording::calls)
      .def_readonly("lost", &probe::Recording::lost)
      .def_readonly("losses", &probe::Recording::losses)
      .def_property_readonly("returned",
                             [](const probe::Recording& self) { return self.returned.size(); })
      .def(py::pickle([](const probe::Recording& recording) { return named(recording); },
                      &recording_from));
}

void bind_comparison(py::module_& module) {
  using Argument = probe::ComparedCall::Argument;
  py::class_<Argument>(module, "ComparedArgument")
      .def_readonly("maker", &Argument::maker)
      .def_readonly("first_maker", &Argument::first_maker);
  py::class_<probe::ComparedCall>(module, "ComparedCall")
      .def_property_readonly(
          "kind",
          [](const probe::ComparedCall& self) {
            return probe::kDifferenceNames[static_cast<std::size_t>(self.difference)];
          })
      .def_readonly("match", &probe::ComparedCall::match)
      .def_readonly("made", &probe::ComparedCall::made)
      .def_readonly("total", &probe::ComparedCall::total)
      .def_readonly("arguments", &probe::ComparedCall::arguments)
      .def_readonly("seen", &probe::ComparedCall::seen)
      .def_property_readonly("flips",
                             [](const probe::ComparedCall& self) {
                               return py::make_tuple(self.flips.flipped, self.flips.choices);
                             })
      .def_property_readonly("why", [](const probe::ComparedCall& self) {
        return report::kUnmeasuredNames[static_cast<std::size_t>(self.why)];
      });
  py::class_<probe::Comparison>(module, "ComparedRuns")
      .def_property_readonly("first",
                             [](const probe::Comparison& self) {
                               return std::const_pointer_cast<probe::Recording>(self.first);
                             })
      .def_property_readonly("second",
                             [](const probe::Comparison& self) {
                               return std::const_pointer_cast<probe::Recording>(self.second);
                             })
      .def_readonly("calls", &probe::Comparison::calls)
      .def_readonly("changes", &probe::Comparison::changes)
      .def_readonly("gradients", &probe::Comparison::gradients)
      .def_readonly("gradient_error", &probe::Comparison::gradient_error)
      .def_readonly("same_gradients", &probe::Comparison::same_gradients)
      .def_property_readonly("result_error",
                             [](const probe::Comparison& self) {
                               return evidence::distance(self.first->returned,
                                                         self.second->returned);
                             })
      .def_property_readonly("same_results", [](const probe::Comparison& self) {
        return evidence::same_bits(self.first->returned, self.second->returned);
      });
}

void bind_nonfinite(py::module_& module) {
  py::class_<probe::GivenTensor>(module, "GivenTensor")
      .def_readonly("dtype", &probe::GivenTensor::dtype)
      .def_readonly("sizes", &probe::GivenTensor::sizes)
      .def_readonly("smallest", &probe::GivenTensor::smallest)
      .def_readonly("largest", &probe::GivenTensor::largest);
  py::class_<probe::Nonfinite>(module, "Nonfinite")
      .def_readonly("site", &probe::Nonfinite::site)
      .def_readonly("inner", &probe::Nonfinite::inner)
      .def_readonly("backward", &probe::Nonfinite::backward)
      .def_readonly("nan", &probe::Nonfinite::nan)
      .def_readonly("dtype", &probe::Nonfinite::dtype)
      .def_readonly("finite_in_float32", &probe::Nonfinite::finite_in_float32)
      .def_readonly("given", &probe::Nonfinite::given);
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
  module.def("start_recording", [] {
    probe::recorder().start();
    return std::make_unique<Session>([] { probe::recorder().stop({}); });
  });
  module.def(
      "stop_recording",
      [](const py::list& returned) {
        return stopped(returned,
                       [](const auto& tensors) { return probe::recorder().stop(tensors); });
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
