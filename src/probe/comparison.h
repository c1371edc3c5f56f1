// A run beside one that was recorded: which of its calls are which of that run, where the numbers
// differ, and where the difference is made.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "probe/recording.h"

namespace habana_mp::probe {

// Why a call differs from the one that it is compared with.
enum class Difference : std::uint8_t {
  None,
  PassedOn,   // by what it was given: none is made here
  Precision,  // it ran in another dtype
  Given,      // a weight, an input or a constant, which no call has made, is another one
  Result,     // from the same, in the same dtypes
  Unmatched,  // the first run has no such call
};
inline constexpr std::array<const char*, 6> kDifferenceNames = {"same",  "passed on", "precision",
                                                                "given", "result",    "only in b"};

struct ComparedCall {
  Difference difference = Difference::Unmatched;
  std::int64_t match = kNoCall;
  double made = 0;   // here, in parts of the size of the result; NaN where that is not known
  double total = 0;  // with what was passed on
  bool seen = true;  // all its numbers could be read
  evidence::Flips flips{};
  report::Unmeasured why = report::Unmeasured::None;  // `made` is not known
  // Arguments that differ: the calls that made them, in this run and in the first.
  struct Argument {
    std::int64_t maker, first_maker;
  };
  std::vector<Argument> arguments{};
};

struct Comparison {
  std::shared_ptr<const Recording> first{}, second{};
  std::vector<ComparedCall> calls{};  // beside those of the second
  std::size_t gradients = 0;          // of weights that both runs have
  double gradient_error = 0;          // see evidence::distance()
  bool same_gradients = true;
  // The change of the loss, to first order, by the sites of the second; where there is no loss, the
  // size of the changes of random sums of the outputs.
  std::map<report::SiteId, double> changes{};
};

class Comparer final : public Recorder {
 public:
  void start(std::shared_ptr<const Recording> first);
  // Nothing where it does not run.
  std::optional<Comparison> stop_comparing(const std::vector<at::Tensor>& returned);
  // Whether a backward pass has begun by now.
  bool ran_backward();
  // A backward pass of a random sum of what the step returned, in place of a loss.
  void begin_projection();
  void end_projection();

 private:
  // The calls of the first run, by module and op.
  struct Candidates {
    std::vector<std::int64_t> calls;
    std::size_t next = 0;  // those before it are taken
  };

  void ended(RunningCall& running, const std::vector<c10::IValue>& results) override;
  bool records_insides() const override { return false; }
  std::int64_t match_of(const RecordedCall& call, const std::string& key);
  bool is_taken(std::int64_t candidate) const;
  int likeness(const RecordedCall& call, const RecordedCall& candidate) const;
  double made_by(RunningCall& running, const std::vector<c10::IValue>& results,
                 ComparedCall& compared, bool same_inputs);
  void wait(Off off);

  std::shared_ptr<const Recording> first_;
  std::map<std::string, Candidates> candidates_;
  std::vector<bool> taken_;
  std::map<std::int64_t, ComparedCall> compared_;  // with the lock, as all here
  std::map<report::SiteId, double> changes_;
  std::map<report::SiteId, double> projected_;  // sums of squares
};

Comparer& comparer();

}  // namespace habana_mp::probe
