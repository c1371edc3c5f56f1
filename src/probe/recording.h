// What the calls of a run computed, in few bytes each: what another run is compared with.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "cast/by_memory.h"
#include "evidence/choices.h"
#include "evidence/digest.h"
#include "probe/arguments.h"
#include "probe/measured_call.h"
#include "report/site.h"
#include "watch/call_stack.h"
#include "watch/step_threads.h"

namespace habana_mp::probe {

inline constexpr std::size_t kMostRecorded = 1 << 16;
inline constexpr std::int64_t kNoCall = -1;
inline constexpr std::int64_t kCast = -2;  // of what no call has made: the copy of a weight

// A tensor that a call was given.
struct RecordedArgument {
  std::uint64_t hash = 0;         // before its cast
  at::ScalarType ran{};           // as the op got it
  std::int64_t maker = kNoCall;   // the call that made it; none of a weight or of the step's input
  std::int64_t weight = kNoCall;  // which of the tensors that gradients are added to, else none
  bool seen = true;               // its numbers could be read
  std::vector<std::int64_t> sizes{};
};

struct RecordedCall {
  report::SiteId site = report::kNone;
  std::string inner{};  // the op of the dispatcher: "aten::exp"
  bool backward = false;
  bool moves = false;            // the op only moves numbers about
  std::int64_t outer = kNoCall;  // the call that it is inside of
  std::vector<RecordedArgument> arguments{};
  std::string constants{};  // the other arguments; of a long text the beginning and a hash
  std::vector<evidence::Digest> results{};
  evidence::Choices choices{};
  // In the process that it ran in: the arguments that no call has made, tensors in the order of
  // `arguments`, and the others by their place in the schema.
  std::vector<at::Tensor> leaves{};
  std::vector<c10::IValue> others{};
};

// A gradient that has arrived at a weight.
struct RecordedGradient {
  std::int64_t weight = kNoCall;
  evidence::Digest digest{};
};

struct Recording {
  std::vector<report::Site> sites{};  // by the numbers in the calls, when the run has ended
  std::vector<RecordedCall> calls{};
  // Calls that are not in it: beyond kMostRecorded, or their numbers could not be read.
  std::uint64_t lost = 0;
  std::int64_t weights = 0;      // tensors that require gradients and that no call has made
  std::vector<double> losses{};  // that a backward pass began with
  bool ran_backward = false;
  std::vector<RecordedGradient> gradients{};
  std::vector<evidence::Digest> returned{};  // by the step
};

// A call while it runs.
struct RunningCall final : MeasuredCall {
  RunningCall();
  ~RunningCall() override;
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  // As the call that it is compared with was given it, and in the dtype that it ran in there.
  at::Tensor reference(const at::Tensor& argument, const at::Tensor& numbers) const override;

  // Casts of torch.autocast: the kernel calls the op again, with what it has cast.
  void call_itself(const std::vector<at::Tensor>& cast);
  // Whether the argument is another one in the call that it is compared with, and that is there.
  bool takes_leaf(std::size_t place) const;

  std::int64_t number = kNoCall;  // in the recording
  RecordedCall noted{};
  bool called_itself = false;  // the dtypes of the arguments are known
  RunningCall* outer;
  const RecordedCall* match = nullptr;      // in the recording of the first run
  std::shared_ptr<const Recording> into{};  // what it is recorded into
};

// Records all that a step calls, until it is stopped.
class Recorder : public watch::Probe {
 public:
  std::string_view name() const override { return name_; }
  bool hears_here() const override { return watch::in_step(step_.load()); }
  std::unique_ptr<watch::ProbedCall> begins(const watch::Thread& thread,
                                            const at::RecordFunction& call) override;
  void ends(const watch::Thread& thread, const at::RecordFunction& call,
            watch::ProbedCall& kept) override;
  void casts(const at::Tensor& source, const at::Tensor& result) override;
  void node_begins(const at::RecordFunction& node) override;

  // For a function of this name. std::runtime_error where another probe looks at the numbers.
  void start(std::string_view name);
  // With what the step returned. Nothing where it does not run.
  std::shared_ptr<Recording> stop(const std::vector<at::Tensor>& returned);

 protected:
  virtual void ended(RunningCall&, const std::vector<c10::IValue>&) {}
  // Whether calls inside of a recorded one are recorded too.
  virtual bool records_insides() const { return true; }

  ForkSafeMutex mutex_;
  std::shared_ptr<Recording> recording_{};
  std::atomic<bool> paused_{false};
  std::atomic<std::uint64_t> step_{0};

 private:
  struct Seen {
    std::uint64_t looks = 0;  // see evidence::looks_of
    evidence::WordSums sums{};
  };
  // What is known of memory: who made it, and the numbers of the last tensors in it, as a
  // transposed tensor has them in another order.
  struct Made {
    std::int64_t call = kNoCall;
    std::array<Seen, 4> seen{};
    std::size_t next = 0;  // the place for another one
  };
  using Makers = ByMemory<Made>;

  void record(const at::RecordFunction& call, RunningCall& running);
  void note_arguments(RunningCall& running, const at::RecordFunction& call);
  std::int64_t maker_of(const at::Tensor& tensor);
  evidence::Known known_of(const at::Tensor& tensor, std::uint64_t looks);
  void note_numbers(const at::Tensor& tensor, std::uint64_t looks, const evidence::Known& known);
  void forget_numbers(const at::Tensor& tensor);
  std::uint64_t hash_of(const at::Tensor& tensor);
  evidence::Digest digest_of(const at::Tensor& tensor, std::int64_t most_sampled);
  std::int64_t weight_of(const at::Tensor& tensor);
  void note_maker(const at::Tensor& tensor, std::int64_t call);
  bool take_place(RunningCall& running);
  void lose();

  std::string_view name_ = "compare";
  std::unordered_map<const c10::TensorImpl*, std::int64_t> weights_;  // with the lock
  std::atomic<std::uint64_t> kept_bytes_{0};                          // of leaves and samples
  Makers made_;                                                       // with the lock
};

Recorder& recorder();

}  // namespace habana_mp::probe
