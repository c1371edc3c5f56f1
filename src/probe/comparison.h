// A run beside one that was recorded: where the numbers differ, and where the difference is made.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "probe/pairing.h"
#include "probe/recording.h"

namespace habana_mp::probe {

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

// Two runs that have both been recorded. Nothing runs, so no change of the loss is known, and a
// difference that is made by a call which was given others is not apart from what it passes on.
Comparison compared(std::shared_ptr<const Recording> first, std::shared_ptr<const Recording> second,
                    Terms terms);

class Comparer final : public Recorder {
 public:
  void start(std::shared_ptr<const Recording> first, Terms terms);
  // Nothing where it does not run.
  std::optional<Comparison> stop_comparing(const std::vector<at::Tensor>& returned);
  // Whether a backward pass has begun by now.
  bool ran_backward();
  // A backward pass of a random sum of what the step returned, in place of a loss.
  void begin_projection();
  void end_projection();

 private:
  void ended(RunningCall& running, const std::vector<c10::IValue>& results) override;
  bool records_insides() const override { return false; }
  double made_by(RunningCall& running, const std::vector<c10::IValue>& results,
                 const Recording& first, ComparedCall& compared);
  void wait(Off off);

  std::optional<Pairing> pairing_;  // with the lock, as all here
  std::map<report::SiteId, double> changes_;
  std::map<report::SiteId, double> projected_;  // sums of squares
};

Comparer& comparer();

}  // namespace habana_mp::probe
