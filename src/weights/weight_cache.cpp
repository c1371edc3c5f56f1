#include "weights/weight_cache.h"

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <span>

#include "base/process_wide.h"
#include "base/torch_private.h"
#include "base/torch_private_python.h"
#include "cast/node.h"
#include "cast/pages.h"
#include "cast/storage_check.h"
#include "weights/weight.h"
#include "weights/weight_copy.h"

namespace habana_mp {
namespace {

std::optional<c10::Stream> stream_of(const at::Tensor& weight) {
  if (weight.is_cpu()) return std::nullopt;
  return torch_private::current_stream(weight.device());
}

const Form kPlain;

// Of a smaller copy, most of the page is what lies beside it.
constexpr std::size_t kSmallestInHugePages = std::size_t{256} << 10;

// What products read in each call; empty where torch does not tell. A plain copy may last no longer
// than a step.
std::span<const std::byte> memory_of(const WeightCache::Packed& made, const Form& form) {
  if (form.layout == Layout::Plain) return {};
  const void* memory = made.copy.is_mkldnn() ? made.data : made.copy.const_data_ptr();
  const std::size_t bytes = bytes_of_copy(made.copy);
  if (memory == nullptr || bytes < kSmallestInHugePages) return {};
  return {static_cast<const std::byte*>(memory), bytes};
}

// Of an offloaded weight that has its copy. A step of an optimizer would read it soon.
void drop_source(const at::Tensor& weight) {
  const c10::StorageImpl& storage = *weight.storage().unsafeGetStorageImpl();
  if (!is_offloaded(storage) || records_graph(weight)) return;
  const std::lock_guard lock(offloading_mutex());
  if (!is_offloaded(storage)) return;  // restored meanwhile
  if (is_first_cast(storage)) drop_unsampled_pages(weight);
}

}  // namespace

bool WeightCache::accepts(const at::Tensor& tensor, DType to) {
  return weight_cache().enabled_.load(std::memory_order_relaxed) && dtype_of(tensor) != to &&
         may_be_weight(tensor);
}

bool WeightCache::accepts_size(const c10::SymInt& numel, std::int64_t dims) {
  return weight_cache().enabled_.load(std::memory_order_relaxed) &&
         TORCH_GUARD_OR_FALSE(numel.sym_ge(smallest_weight(dims)));
}

std::optional<Ended> WeightCache::why_ended(const Entry& entry, const State& now,
                                            const at::Tensor& weight, DType to) const {
  const State& then = entry.state;
  if (entry.last_end > then.ends) return Ended::Alias;
  if (!torch_private::is_same_counter(then.counter, now.counter) || then.data != now.data ||
      !fits(entry.copy, entry.form, weight, to)) {
    return Ended::Storage;
  }
  if (then.version != now.version) return Ended::Version;
  if (then.epoch < all_ended_) return all_ended_why_;
  if (then.epoch != now.epoch && (weight.requires_grad() || then.epoch < entry.last_step)) {
    return Ended::Optimizer;
  }
  if (entry.copy_version != entry.copy._version()) return Ended::Written;
  if (then.samples != now.samples) return Ended::Samples;
  return std::nullopt;
}

// Takes the copy out of its entry. What comes back is memory to be written again: defined where it
// fits the weight and nobody else holds it, such as a graph that waits for its backward pass.
at::Tensor WeightCache::take(Section& section, Entry& entry, const at::Tensor& weight, DType to) {
  const bool plain = entry.form.layout == Layout::Plain;
  at::Tensor copy = release(entry);
  if (plain && fits(copy, kPlain, weight, to) && entry.copy_version == copy._version() &&
      copy.use_count() == 1 && copy.storage().use_count() == 1) {
    return copy;
  }
  section.freed.push_back(std::move(copy));
  return {};
}

at::Tensor WeightCache::cast(const at::Tensor& weight, DType to, Caller caller, bool* was_cached) {
  bool found = false;
  const at::Tensor copy = copy_of(weight, to, kPlain, caller, found, {}).copy;
  if (was_cached != nullptr) *was_cached = found;
  return tensor_over(copy, weight);
}

WeightCache::Packed WeightCache::packed(const at::Tensor& weight, DType to, const Form& form,
                                        Caller caller, bool& was_cached, at::IntArrayRef images) {
  return copy_of(weight, to, form, caller, was_cached, images);
}

WeightCache::State WeightCache::state_of(const at::Tensor& weight,
                                         const std::optional<c10::Stream>& stream) {
  const auto* impl = weight.unsafeGetTensorImpl();
  return {impl->version_counter(),
          impl->version_counter().current_version(),
          weight.const_data_ptr(),
          samples_of(weight),
          0,
          0,
          stream};
}

// Counts a use of the weight in this form. False where the op would read it packed and its copy is
// to be plain, as other uses of the weight need it.
bool WeightCache::has_this_form(Entry& entry, const Form& form, bool valid, bool never_kept) {
  const bool packed = entry.form.layout != Layout::Plain;
  if (form.layout == Layout::Plain) {
    // Not by what is cast at every use while something holds it: it may be let go.
    entry.wanted_plain |= !never_kept;
    if (entry.packable > 0) --entry.packable;
    if (valid && packed) entry.patience = std::min(4 * entry.patience, kMostPatience);
    return true;
  }
  if (never_kept) return false;  // cast at every use, which is no use of packing
  if (valid && entry.form == form) return true;
  if (valid && packed) return false;  // for another op
  if (!entry.wanted_plain) return true;
  if (entry.packable >= entry.patience) {
    entry.packable = 0;
    return true;
  }
  entry.packable += 2;  // the plain use that follows takes one off again
  return false;
}

// What there is for a weight as it is `now`; none where the op is to be called with a plain copy.
std::optional<WeightCache::Found> WeightCache::find(const at::Tensor& weight, State& now, DType to,
                                                    const Form& form, Caller caller) {
  const std::size_t known = caller == Caller::Python ? known_holds(weight) : 0;
  Section section(mutex);
  Entry& entry = entry_of(section, weight);
  now.epoch = epoch_;
  now.ends = ends_;
  const bool written = is_written(weight.storage().unsafeGetStorageImpl());
  const bool held =
      entry.sees_holders(caller) == Caller::Python && is_held_elsewhere(weight, known);
  std::optional<Ended> why =
      why_never_kept(weight, written || entry.exported || entry.held || held);
  const bool never_kept = why.has_value();
  // Who holds it may write to it until it lets go, and nothing shows when it does.
  if (why == Ended::Foreign && held) entry.last_end = ++ends_;
  if (!why && entry.copy.defined()) why = why_ended(entry, now, weight, to);
  const bool here = entry.state.stream == now.stream;
  const bool valid = entry.copy.defined() && !why && here;
  const bool plain = form.layout == Layout::Plain;
  if (why && (plain || !never_kept)) entry.patience = kPatience;
  if (!has_this_form(entry, form, valid, never_kept)) {
    if (!is_int8(form.layout)) return std::nullopt;
    // No plain copy takes its place.
    if (never_kept) {
      ++counts_.ended[static_cast<std::size_t>(*why)];
      if (entry.copy.defined()) section.freed.push_back(release(entry));
    }
    ++counts_.misses;
    return Found{};
  }
  if (std::exchange(entry.after_backward, false) && entry.state.epoch == now.epoch &&
      entry.state.version == now.version) {
    used_after_backward_ = keep_after_backward_ = true;
  }
  if (why) ++counts_.ended[static_cast<std::size_t>(*why)];
  Found found{.keep = why != Ended::Shared && !written};
  if (valid && entry.form == form) {
    ++counts_.hits;
    found.copy = {entry.copy, entry.packed_data};
    return found;
  }
  if (entry.copy.defined()) {
    found.memory = take(section, entry, weight, to);
    // On another stream it may still be written to, or read.
    if (!here || !plain) section.freed.push_back(std::exchange(found.memory, at::Tensor()));
  }
  ++(found.memory.defined() ? counts_.refreshed : counts_.misses);
  return found;
}

WeightCache::Packed WeightCache::copy_of(const at::Tensor& weight, DType to, const Form& form,
                                         Caller caller, bool& was_cached, at::IntArrayRef images) {
  if (!weight.is_meta()) check_storage(weight);
  if (const auto before = before_look.load(std::memory_order_acquire)) before();
  const std::optional<c10::Stream> stream = stream_of(weight);
  const bool captured = stream && torch_private::is_capturing(*stream);
  // What still writes may be asked by an event, and a capture allows no query of one.
  if (!captured && any_writes_.load(std::memory_order_acquire)) settle_writes();
  State now = state_of(weight, stream);
  std::optional<Found> found = captured ? Found{} : find(weight, now, to, form, caller);
  if (!found) return {};
  was_cached = found->copy.copy.defined();
  if (was_cached) return std::move(found->copy);
  Packed made{.copy = make_copy(weight, to, form, std::move(found->memory), images)};
  if (made.copy.is_mkldnn()) made.data = torch_private::packed_data(made.copy);
  if (found->keep && store(weight, std::move(now), made, form)) {
    move_to_huge_pages(memory_of(made, form));
    drop_source(weight);
  }
  return made;
}

WeightCache::Entry& WeightCache::entry_of(Section& section, const at::Tensor& weight) {
  const c10::StorageImpl* storage = weight.storage().unsafeGetStorageImpl();
  if (const auto it = entries_.find(storage); it != entries_.end()) return it->second;
  if (entries_.size() >= sweep_at_) sweep(section);
  return entries_.try_emplace(storage, weight.storage().getWeakStorageImpl(), ++ends_)
      .first->second;
}

// What torch is asked for comes before the lock: a mode may have an op of it run Python.
bool WeightCache::store(const at::Tensor& weight, State state, const Packed& made,
                        const Form& form) {
  const at::Tensor& copy = made.copy;
  const std::size_t bytes = bytes_of_copy(copy);
  Section section(mutex);
  if (bytes_ + bytes > std::min(limit_, sweep_at_bytes_)) sweep(section);
  if (bytes_ + bytes > limit_) return false;
  Entry& entry = entry_of(section, weight);
  if (entry.last_end > state.ends) return false;  // and another thread may have made a newer one
  if (entry.copy.defined()) section.freed.push_back(release(entry));  // of another thread
  bytes_ += bytes;
  entry.state = std::move(state);
  entry.copy = copy;
  entry.copy_version = copy._version();
  entry.form = form;
  entry.bytes = bytes;
  entry.packed_data = made.data;
  // Nobody but our ops gets a packed one.
  if (form.layout == Layout::Plain) by_copy_[copy.storage().unsafeGetStorageImpl()] = &entry;
  return true;
}

at::Tensor WeightCache::release(Entry& entry) {
  bytes_ -= entry.bytes;
  if (entry.form.layout == Layout::Plain)
    by_copy_.erase(entry.copy.storage().unsafeGetStorageImpl());
  return std::exchange(entry.copy, at::Tensor());
}

void WeightCache::drop_copies(Section& section) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!it->second.exported) {
      it = drop(section, it);
      continue;
    }
    if (it->second.copy.defined()) section.freed.push_back(release(it->second));
    ++it;
  }
}

void WeightCache::sweep(Section& section) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!it->second.weight.expired()) {
      ++it;
      continue;
    }
    if (it->second.copy.defined()) ++counts_.ended[static_cast<std::size_t>(Ended::Freed)];
    it = drop(section, it);
  }
  // So the entries of freed weights are never more than those of living ones.
  sweep_at_ = std::max<std::size_t>(64, 2 * entries_.size());
  sweep_at_bytes_ = std::max<std::size_t>(kSweepBytes, 2 * bytes_);
}

WeightCache::Entries::iterator WeightCache::drop(Section& section, Entries::iterator it) {
  if (it->second.copy.defined()) section.freed.push_back(release(it->second));
  section.gone.push_back(std::move(it->second));
  return entries_.erase(it);
}

void WeightCache::begin_epoch(bool after_step) {
  ++epoch_;
  if (after_step) keep_after_backward_ = std::exchange(used_after_backward_, false);
}

void WeightCache::end_all(Ended why) {
  const Section section(mutex);
  begin_epoch(why == Ended::Optimizer);
  all_ended_ = epoch_;
  all_ended_why_ = why;
}

void WeightCache::end_step(const std::vector<at::Tensor>& parameters) {
  const Section section(mutex);
  begin_epoch(true);
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.has_storage()) continue;
    const auto it = entries_.find(parameter.storage().unsafeGetStorageImpl());
    if (it != entries_.end()) it->second.last_step = epoch_;
  }
}

void WeightCache::end_backward(const c10::StorageImpl* weight) {
  Section section(mutex);
  const auto it = entries_.find(weight);
  if (it == entries_.end() || !it->second.copy.defined()) return;
  it->second.after_backward = true;
  if (keep_after_backward_) return;
  section.freed.push_back(release(it->second));
}

void WeightCache::end_alias(const at::Tensor& tensor, bool exported) {
  if (!tensor.has_storage()) return;
  Section section(mutex);
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (const auto copy = by_copy_.find(storage); copy != by_copy_.end()) {
    // It is not written again either: who has the alias may keep it.
    ++counts_.ended[static_cast<std::size_t>(Ended::Written)];
    section.freed.push_back(release(*copy->second));
    return;
  }
  auto it = entries_.find(storage);
  if (it == entries_.end()) {
    // Nothing shows later, when the weight is cast for the first time, that somebody holds the
    // alias.
    if (exported && is_weight(tensor)) entry_of(section, tensor).exported = true;
    return;
  }
  it->second.last_end = ++ends_;
  it->second.exported = it->second.exported || exported;
}

WeightCache::Info WeightCache::info() {
  Section section(mutex);
  sweep(section);
  Info info = counts_;
  for (const auto& [storage, entry] : entries_) {
    if (!entry.copy.defined()) continue;
    ++info.entries;
    info.packed += entry.form.layout == Layout::Plain ? 0 : 1;
  }
  info.bytes = bytes_;
  info.limit = limit_;
  return info;
}

void WeightCache::clear() {
  Section section(mutex);
  drop_copies(section);
  counts_ = {};
  keep_after_backward_ = true;
  used_after_backward_ = false;
}

void WeightCache::set_limit(std::size_t bytes) {
  Section section(mutex);
  limit_ = bytes;
  enabled_ = bytes > 0;
  weight_done = enabled_
                    ? [](const c10::StorageImpl* weight) { weight_cache().end_backward(weight); }
                    : WeightDone{nullptr};
  if (bytes_ > limit_) drop_copies(section);
}

WeightCache& weight_cache() { return process_wide<WeightCache>(); }

}  // namespace habana_mp
