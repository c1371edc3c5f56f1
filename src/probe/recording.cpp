#include "probe/recording.h"

#include <algorithm>
#include <mutex>
#include <sstream>
#include <utility>

#include "base/process_wide.h"
#include "base/torch_private.h"
#include "cast/dtypes.h"
#include "cast/tensors.h"
#include "evidence/rerun.h"
#include "probe/rows.h"
#include "watch/dispatcher_watch.h"
#include "watch/observatory.h"

namespace habana_mp::probe {
namespace {

using watch::all;
using watch::Frame;
using watch::Thread;

thread_local RunningCall* innermost = nullptr;

// An argument that is no tensor, as text.
std::string text_of(const c10::IValue& value) {
  if (value.isGenerator() || value.isStorage() || value.isStream() || value.isCapsule()) return "?";
  std::ostringstream text;
  text << value;
  return text.str();
}

bool holds_tensors(const c10::IValue& value) {
  return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
}

// What a call has written: a fused step of an optimizer returns nothing.
std::vector<c10::IValue> results_of(const evidence::Op& op, const at::RecordFunction& call,
                                    const std::vector<c10::IValue>& arguments) {
  if (!op.handle.schema().returns().empty()) return call.outputs();
  std::vector<c10::IValue> written;
  for (const std::size_t i : op.written) {
    if (i < arguments.size()) written.push_back(arguments[i]);
  }
  return written;
}

}  // namespace

RunningCall::RunningCall() : outer(std::exchange(innermost, this)) {}
RunningCall::~RunningCall() { innermost = outer; }

at::Tensor RunningCall::reference(const at::Tensor& argument, const at::Tensor& numbers) const {
  const auto tensors = tensors_in(arguments);
  const auto place = static_cast<std::size_t>(
      std::find_if(tensors.begin(), tensors.end(),
                   [&](const at::Tensor& tensor) { return tensor.is_same(argument); }) -
      tensors.begin());
  if (match == nullptr || place >= match->arguments.size() || place >= noted.arguments.size())
    return numbers;
  const RecordedArgument& there = match->arguments[place];
  at::Tensor wanted = numbers;
  if (there.maker == kNoCall && there.hash != noted.arguments[place].hash &&
      place < match->leaves.size() && match->leaves[place].defined()) {
    wanted = match->leaves[place];
  }
  const bool casts = eligible(dtype_of(wanted)) && eligible(dtype_of_type(there.ran));
  return casts ? wanted.detach().to(there.ran) : wanted;
}

std::int64_t Recorder::maker_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return kNoCall;
  const std::lock_guard guard(mutex_);
  const auto found = made_.find(tensor.storage().unsafeGetStorageImpl());
  return found == made_.end() || found->second.memory.expired() ? kNoCall : found->second.call;
}

void Recorder::note_maker(const at::Tensor& tensor, std::int64_t call) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  Made made{tensor.storage().getWeakStorageImpl(), call};
  const std::lock_guard guard(mutex_);
  const auto [place, fresh] =
      made_.try_emplace(tensor.storage().unsafeGetStorageImpl(), std::move(made));
  if (!fresh) std::swap(place->second, made);
}

void Recorder::note_arguments(RunningCall& running, const at::RecordFunction& call) {
  RecordedCall& noted = running.noted;
  for (const c10::IValue& value : call.inputs()) {
    noted.others.push_back(holds_tensors(value) ? c10::IValue() : value);
    if (!holds_tensors(value)) noted.constants += text_of(value) + ", ";
  }
  for (const at::Tensor& argument : tensors_in(call.inputs())) {
    const at::Tensor& given = running.given(argument);
    RecordedArgument& one = noted.arguments.emplace_back();
    at::Tensor& leaf = noted.leaves.emplace_back();
    if (!given.defined()) continue;
    one = {evidence::hash_of(given), argument.scalar_type(), maker_of(given), given.sizes().vec()};
    if (one.maker == kNoCall) leaf = given.detach();
  }
}

std::unique_ptr<watch::ProbedCall> Recorder::begins(Thread& thread,
                                                    const at::RecordFunction& call) {
  const evidence::Op* op = evidence::op_of(call);
  if (op == nullptr || op->hands_on || paused_.load()) return nullptr;
  if (innermost != nullptr && innermost->op == op) {
    // Casts of torch.autocast: the kernel calls the op again, with what it has cast.
    const auto tensors = tensors_in(call.inputs());
    auto& arguments = innermost->noted.arguments;
    for (std::size_t i = 0; i < std::min(tensors.size(), arguments.size()); ++i) {
      if (tensors[i].defined()) arguments[i].ran = tensors[i].scalar_type();
    }
    innermost->called_itself = true;
    return nullptr;
  }
  if (innermost != nullptr && !records_insides()) return nullptr;
  Frame* frame = counted_with(thread);
  if (frame == nullptr) return nullptr;
  const bool backward = frame->kind == Frame::Kind::Backward;
  if (op->composite &&
      (!op->repeatable || (!backward && !records_insides() && is_transparent(*frame, *op))))
    return nullptr;
  auto running = std::make_unique<RunningCall>();
  running->op = op;
  running->backward = backward;
  running->epoch = thread.epoch;
  running->site = frame->call.site;
  if (frame->kind == Frame::Kind::Decided) running->casts = frame->cast_tensors;
  if (frame == &thread.frames.back()) frame->measured = running.get();
  note_arguments(*running, call);
  if (!records_insides() && op->repeatable) {
    running->arguments = evidence::kept(*op, call.inputs());
  } else {
    running->arguments.assign(call.inputs().begin(), call.inputs().end());
  }
  const std::lock_guard guard(mutex_);
  if (recording_ == nullptr) return nullptr;
  if (recording_->calls.size() >= kMostRecorded) {
    ++recording_->lost;
    return nullptr;
  }
  if (running->outer != nullptr) running->noted.outer = running->outer->number;
  running->number = static_cast<std::int64_t>(recording_->calls.size());
  recording_->calls.emplace_back();  // its place: calls inside of it come behind it
  return running;
}

void Recorder::ends(Thread& thread, const at::RecordFunction& call, watch::ProbedCall& kept) {
  auto& running = static_cast<RunningCall&>(kept);
  const std::vector<c10::IValue> results = results_of(*running.op, call, running.arguments);
  if (results.empty()) return;  // the op has raised
  RecordedCall& noted = running.noted;
  noted.site = running.site;
  noted.inner = running.op->handle.schema().name();
  noted.backward = running.backward;
  if (!running.called_itself) {
    const auto tensors = tensors_in(running.arguments);
    for (std::size_t i = 0; i < std::min(tensors.size(), noted.arguments.size()); ++i) {
      // A kernel of autocast casts behind the beginning of the call.
      for (const auto& [source, result] : running.casts) {
        if (source.is_same(tensors[i])) noted.arguments[i].ran = result.scalar_type();
      }
    }
  }
  const auto made = tensors_in(results);
  for (const at::Tensor& result : made) {
    noted.results.push_back(evidence::digest_of(result));
    note_maker(result, running.number);
  }
  if (evidence::begins_backward(*running.op, tensors_in(running.arguments))) {
    const evidence::OutOfSight out_of_sight;
    const double loss = tensors_in(running.arguments).front().to(at::kDouble).item<double>();
    const std::lock_guard guard(mutex_);
    if (recording_ != nullptr) recording_->losses.push_back(loss);
  }
  ended(thread, running, results);
  const std::lock_guard guard(mutex_);
  if (recording_ == nullptr) return;
  recording_->calls[static_cast<std::size_t>(running.number)] = std::move(noted);
}

void Recorder::casts(const at::Tensor& source, const at::Tensor& result) {
  const std::int64_t maker = maker_of(source);
  note_maker(result, maker == kNoCall ? kCast : maker);
}

void Recorder::node_begins(const at::RecordFunction& node) {
  if (paused_.load()) return;
  if (std::string_view(node.name()).find("AccumulateGrad") == std::string_view::npos) return;
  for (const at::Tensor& gradient : tensors_in(node.inputs())) {
    evidence::Digest digest = evidence::digest_of(gradient);
    const std::lock_guard guard(mutex_);
    if (recording_ != nullptr && recording_->gradients.size() < kMostRecorded)
      recording_->gradients.push_back(std::move(digest));
  }
}

void Recorder::start() {
  watch::set_probe(*this);
  const std::lock_guard guard(mutex_);
  recording_ = std::make_shared<Recording>();
}

std::shared_ptr<Recording> Recorder::stop(const std::vector<at::Tensor>& returned) {
  watch::remove_probe(*this);
  Makers made;
  std::shared_ptr<Recording> recording;
  {
    const std::lock_guard guard(mutex_);
    recording = std::exchange(recording_, nullptr);
    made.swap(made_);
  }
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
