#include "probe/recording.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "base/op_schema.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "cast/storage_check.h"
#include "cast/tensors.h"
#include "evidence/rerun.h"
#include "probe/measured_call.h"
#include "watch/call_stack.h"
#include "watch/observatory.h"

namespace habana_mp::probe {
namespace {

using watch::all;
using watch::Frame;
using watch::Thread;

thread_local RunningCall* innermost = nullptr;

// Beyond it a recording keeps no more leaves, and no more samples.
constexpr std::uint64_t kMostKeptBytes = std::uint64_t{256} << 20;

// What stands for the numbers of memory that is overwritten.
std::uint64_t hash_of_sizes(const at::Tensor& tensor) {
  evidence::Fnv hash;
  for (const std::int64_t size : tensor.sizes()) hash.add(static_cast<std::uint64_t>(size));
  return hash.value;
}

// What a call has written: a fused step of an optimizer returns nothing.
std::vector<c10::IValue> results_of(const evidence::Op& op, const at::RecordFunction& call,
                                    const std::vector<c10::IValue>& arguments) {
  if (!op.handle.schema().returns().empty()) return evidence::results_of(op, call.outputs());
  std::vector<c10::IValue> written;
  for (const std::size_t i : op.written) {
    if (i < arguments.size()) written.push_back(arguments[i]);
  }
  return written;
}

}  // namespace

RunningCall::RunningCall() : outer(std::exchange(innermost, this)) {}
RunningCall::~RunningCall() { innermost = outer; }

void RunningCall::call_itself(const std::vector<at::Tensor>& cast) {
  for (std::size_t i = 0; i < std::min(cast.size(), noted.arguments.size()); ++i) {
    if (cast[i].defined()) noted.arguments[i].ran = cast[i].scalar_type();
  }
  called_itself = true;
}

bool RunningCall::takes_leaf(std::size_t place) const {
  if (place >= match->leaves.size() || !match->leaves[place].defined()) return false;
  const RecordedArgument& there = match->arguments[place];
  return there.maker == kNoCall && there.hash != noted.arguments[place].hash;
}

at::Tensor RunningCall::reference(const at::Tensor& argument, const at::Tensor& numbers) const {
  const auto tensors = tensors_of(arguments);
  const auto place = static_cast<std::size_t>(
      std::find_if(tensors.begin(), tensors.end(),
                   [&](const at::Tensor& tensor) { return tensor.is_same(argument); }) -
      tensors.begin());
  if (match == nullptr || place >= match->arguments.size() || place >= noted.arguments.size())
    return numbers;
  const RecordedArgument& there = match->arguments[place];
  at::Tensor wanted = numbers;
  if (takes_leaf(place)) {
    wanted = match->leaves[place];
    check_storage(wanted);  // the first run may have given its memory back since
  }
  const bool casts = may_be_cast(dtype_of(wanted)) && eligible(dtype_of_type(there.ran));
  return casts ? wanted.detach().to(there.ran) : wanted;
}

std::int64_t Recorder::maker_of(const at::Tensor& tensor) {
  const std::lock_guard guard(mutex_);
  const Made* made = made_.find(tensor);
  return made == nullptr ? kNoCall : made->call;
}

evidence::Known Recorder::known_of(const at::Tensor& tensor, std::uint64_t looks) {
  if (looks == 0) return std::nullopt;
  const std::lock_guard guard(mutex_);
  const Made* made = made_.find(tensor);
  if (made == nullptr) return std::nullopt;
  const auto seen = std::ranges::find(made->seen, looks, &Seen::looks);
  return seen == made->seen.end() ? std::nullopt : evidence::Known(seen->sums);
}

void Recorder::note_numbers(const at::Tensor& tensor, std::uint64_t looks,
                            const evidence::Known& known) {
  if (looks == 0 || !known) return;
  Makers::Gone gone;
  const std::lock_guard guard(mutex_);
  if (recording_ == nullptr) return;
  if (Made* made = made_.get(tensor)) {
    auto place = std::ranges::find(made->seen, looks, &Seen::looks);
    if (place == made->seen.end()) place = made->seen.begin() + made->next++ % made->seen.size();
    *place = {looks, *known};
  }
  gone = made_.take_expired();
}

// What has been written may look the same as before.
void Recorder::forget_numbers(const at::Tensor& tensor) {
  const std::lock_guard guard(mutex_);
  if (Made* made = made_.find(tensor)) made->seen = {};
}

// Most tensors are looked at when they are made, and again by each call that is given them.
std::uint64_t Recorder::hash_of(const at::Tensor& tensor) {
  const std::uint64_t looks = evidence::looks_of(tensor);
  evidence::Known known = known_of(tensor, looks);
  if (known) return evidence::hash_of(tensor, &known);
  const std::uint64_t hash = evidence::hash_of(tensor, &known);
  note_numbers(tensor, looks, known);
  return hash;
}

evidence::Digest Recorder::digest_of(const at::Tensor& tensor, std::int64_t most_sampled) {
  const std::uint64_t looks = evidence::looks_of(tensor);
  evidence::Known known = known_of(tensor, looks);
  evidence::Digest digest = evidence::digest_of(tensor, most_sampled, &known);
  note_numbers(tensor, looks, known);
  return digest;
}

void Recorder::note_maker(const at::Tensor& tensor, std::int64_t call) {
  Makers::Gone gone;
  const std::lock_guard guard(mutex_);
  if (Made* made = made_.get(tensor)) made->call = call;
  gone = made_.take_expired();
}

std::int64_t Recorder::weight_of(const at::Tensor& tensor) {
  if (!tensor.is_leaf() || !tensor.requires_grad()) return kNoCall;
  const std::lock_guard guard(mutex_);
  if (recording_ == nullptr) return kNoCall;
  const auto [place, fresh] =
      weights_.try_emplace(tensor.unsafeGetTensorImpl(), recording_->weights);
  recording_->weights += fresh ? 1 : 0;
  return place->second;
}

// Its place in the recording: calls inside of it come behind it. False where there is none.
bool Recorder::take_place(RunningCall& running) {
  const std::lock_guard guard(mutex_);
  if (recording_ == nullptr) return false;
  if (recording_->calls.size() >= kMostRecorded) {
    ++recording_->lost;
    return false;
  }
  // A call that outlives its run may have others inside of it.
  if (running.outer != nullptr && running.outer->into == recording_)
    running.noted.outer = running.outer->number;
  running.into = recording_;
  running.number = static_cast<std::int64_t>(recording_->calls.size());
  recording_->calls.emplace_back();
  return true;
}

void Recorder::lose() {
  const std::lock_guard guard(mutex_);
  if (recording_ != nullptr) ++recording_->lost;
}

void Recorder::note_arguments(RunningCall& running, const at::RecordFunction& call) {
  RecordedCall& noted = running.noted;
  for (const c10::IValue& value : call.inputs()) {
    noted.others.push_back(holds_tensors(value) ? c10::IValue() : value);
    if (!holds_tensors(value)) noted.constants += text_of(value) + ", ";
  }
  std::uint64_t bytes = 0;
  for (const at::Tensor& argument : tensors_of(call.inputs())) {
    const at::Tensor& given = running.given(argument);
    RecordedArgument& one = noted.arguments.emplace_back();
    at::Tensor& leaf = noted.leaves.emplace_back();
    if (!given.defined()) continue;
    const bool overwritten = running.op->overwrites && noted.arguments.size() == 1;
    one.hash = overwritten ? hash_of_sizes(given) : hash_of(given);
    one.seen = one.hash != 0;
    one.ran = argument.scalar_type();
    one.maker = maker_of(given);
    one.weight = weight_of(given);
    one.sizes = given.sizes().vec();
    const bool sparse = given.layout() != at::kStrided;  // it has no number of bytes
    if (one.maker != kNoCall || !one.seen || overwritten || sparse) continue;
    // A weight lives on anyway; of what the step takes from elsewhere some is kept.
    const std::uint64_t size = one.weight != kNoCall ? 0 : given.nbytes();
    if (kept_bytes_.load() + bytes + size > kMostKeptBytes) continue;
    bytes += size;
    leaf = torch_private::is_wrapped_number(given) ? given : torch_private::alias_of(given);
  }
  kept_bytes_ += bytes;
}

std::unique_ptr<watch::ProbedCall> Recorder::begins(const Thread& thread,
                                                    const at::RecordFunction& call) {
  const evidence::Op* op = evidence::op_of(call);
  if (op == nullptr || op->hands_on || paused_.load()) return nullptr;
  if (innermost != nullptr && innermost->op == op) {
    innermost->call_itself(tensors_of(call.inputs()));
    return nullptr;
  }
  if (innermost != nullptr && !records_insides()) {
    // What it makes, such as the statistics that a backward pass wants, the call round it makes.
    auto inside = std::make_unique<RunningCall>();
    inside->number = inside->outer->number;
    inside->into = inside->outer->into;
    return inside;
  }
  const Frame* frame = counted_with(thread);
  if (frame == nullptr) return nullptr;
  if (innermost != nullptr && moves_number(*op, call.inputs())) return nullptr;
  const bool backward = frame->kind == Frame::Kind::Backward;
  const bool whole =
      op->repeatable && (backward || records_insides() || !is_transparent(*frame, *op));
  if (op->composite && !whole) return nullptr;
  auto running = std::make_unique<RunningCall>();
  running->op = op;
  running->backward = backward;
  running->epoch = thread.epoch;
  running->site = frame->call.site;
  if (frame->kind == Frame::Kind::Decided) running->casts = frame->cast_tensors;
  try {
    note_arguments(*running, call);
    if (!records_insides() && (op->repeatable || op->moves)) {
      running->keep(call.inputs());
    } else {
      running->arguments.assign(call.inputs().begin(), call.inputs().end());
    }
  } catch (const std::exception&) {
    lose();
    return nullptr;
  }
  if (!take_place(*running)) return nullptr;
  for (const std::size_t i : op->written) {  // running statistics too, which are no results
    if (i >= call.inputs().size()) continue;
    for (const at::Tensor& written : tensors_of(call.inputs().slice(i, 1)))
      note_maker(written, running->number);
  }
  return running;
}

void Recorder::ends(const Thread&, const at::RecordFunction& call, watch::ProbedCall& kept) {
  auto& running = static_cast<RunningCall&>(kept);
  {
    // A call may outlive the run that it began in.
    const std::lock_guard guard(mutex_);
    if (recording_ == nullptr || running.into != recording_) return;
  }
  if (running.op == nullptr) {
    for (const at::Tensor& made : tensors_in(call.outputs())) note_maker(made, running.number);
    return;
  }
  if (running.epoch != watch::epoch.load(std::memory_order_relaxed)) return;
  try {
    record(call, running);
  } catch (const std::exception&) {
    lose();
  }
}

void Recorder::record(const at::RecordFunction& call, RunningCall& running) {
  const std::vector<c10::IValue> results = results_of(*running.op, call, running.arguments);
  if (results.empty()) return;  // the op has raised
  RecordedCall& noted = running.noted;
  noted.site = running.site;
  noted.inner = running.op->handle.schema().name();
  noted.backward = running.backward;
  noted.moves = running.op->moves && running.op->written.empty();
  const auto given = tensors_of(running.arguments);
  if (!running.called_itself) {
    for (std::size_t i = 0; i < std::min(given.size(), noted.arguments.size()); ++i) {
      // A kernel of autocast casts behind the beginning of the call.
      for (const auto& [source, result] : running.casts) {
        if (source.is_same(given[i])) noted.arguments[i].ran = result.scalar_type();
      }
    }
  }
  const auto made = tensors_in(results);
  // All that it computes, other calls have computed.
  const bool only_calls =
      running.op->composite && without_aten(noted.inner).size() != noted.inner.size();
  for (const std::size_t i : running.op->written) {
    if (i >= running.arguments.size()) continue;
    for (const at::Tensor& written : tensors_of({running.arguments[i]})) forget_numbers(written);
  }
  const bool recurrent = noted.inner.find("rnn") != std::string::npos;
  const auto most =
      evidence::kMostSampled / static_cast<std::int64_t>(std::max<std::size_t>(1, made.size()));
  std::uint64_t bytes = 0;
  for (const at::Tensor& result : made) {
    note_maker(result, running.number);
    // A workspace, which nothing needs to fill.
    if (recurrent && result.defined() && result.scalar_type() == at::kByte) continue;
    const bool room = kept_bytes_.load() + bytes < kMostKeptBytes;
    if (!only_calls) forget_numbers(result);
    noted.results.push_back(digest_of(result, room ? std::max<std::int64_t>(most, 16) : 0));
    bytes += noted.results.back().sample.size() * sizeof(float);
  }
  if (kept_bytes_.load() + bytes < kMostKeptBytes)
    noted.choices = evidence::choices_of(noted.inner, running.arguments, results);
  bytes += noted.choices.numbers.size() * sizeof(std::int64_t);
  kept_bytes_ += bytes;
  if (evidence::begins_backward(*running.op, given) && evidence::is_readable(given.front())) {
    const evidence::OutOfSight out_of_sight;
    const double loss = given.front().to(at::kDouble).item<double>();
    const std::lock_guard guard(mutex_);
    if (recording_ != nullptr) recording_->losses.push_back(loss);
  }
  ended(running, results);
  const std::lock_guard guard(mutex_);
  if (running.into != recording_) return;
  recording_->calls[static_cast<std::size_t>(running.number)] = std::move(noted);
}

void Recorder::casts(const at::Tensor& source, const at::Tensor& result) {
  const std::int64_t maker = maker_of(source);
  note_maker(result, maker == kNoCall ? kCast : maker);
}

void Recorder::node_begins(const at::RecordFunction& node) {
  if (paused_.load()) return;
  {
    const std::lock_guard guard(mutex_);
    if (recording_ != nullptr) recording_->ran_backward = true;
  }
  const at::Tensor leaf = torch_private::accumulating_leaf();
  if (!leaf.defined()) return;
  const std::int64_t weight = weight_of(leaf);
  for (const at::Tensor& gradient : tensors_in(node.inputs())) {
    if (!gradient.defined()) continue;
    RecordedGradient arrived{weight, digest_of(gradient, evidence::kMostSampled)};
    const std::lock_guard guard(mutex_);
    if (recording_ == nullptr) return;
    if (recording_->gradients.size() < kMostRecorded) {
      recording_->gradients.push_back(std::move(arrived));
    } else {
      ++recording_->lost;
    }
  }
}

void Recorder::start(std::string_view name) {
  evidence::forget_kernels();
  if (watch::probe() == nullptr) name_ = name;
  watch::set_probe(*this);
  step_.store(watch::begin_step());
  paused_.store(false);
  kept_bytes_.store(0);
  const std::lock_guard guard(mutex_);
  recording_ = std::make_shared<Recording>();
}

std::shared_ptr<Recording> Recorder::stop(const std::vector<at::Tensor>& returned) {
  Makers::Gone made;
  decltype(weights_) weights;
  std::shared_ptr<Recording> recording;
  {
    const std::lock_guard guard(mutex_);
    recording = std::exchange(recording_, nullptr);
    made = made_.take_all();
    weights.swap(weights_);
  }
  if (recording == nullptr) return nullptr;
  watch::end_step(step_.exchange(0));
  watch::remove_probe(*this);
  for (const at::Tensor& tensor : returned) {
    recording->returned.push_back(evidence::digest_of(tensor));
  }
  const std::lock_guard guard(all().mutex);
  for (report::SiteId id = 0; id < all().sites.size(); ++id) {
    recording->sites.push_back(all().sites[id]);
  }
  return recording;
}

Recorder& recorder() { return process_wide<Recorder>(); }

}  // namespace habana_mp::probe
