// The weight cache: the copies of a model's weights in another dtype, cast once and used until the
// weight changes.
//
// What may be in it: parameters, that is leaf tensors that require grad, and torch.nn.Parameter
// that do not; not those for which a cast costs less than the look-up.
//
// A weight must never be stale, and torch does not record every change: `.data` and NumPy aliases
// write past the version counter, fused optimizers do not move it. So a copy is used only while
//   - the weight's memory, version counter and version, sizes and strides are what they were;
//   - nobody else shares the memory, nobody but torch owns it, and no collective writes to it;
//   - no optimizer has made a step, unless the weight is frozen and no parameter of it, no
//     disable_casts has ended, and nobody has read the weight's `.data` (or another alias of its
//     memory) since the copy was made;
//   - samples of the weight, on the CPU, are what they were.
// Where an op reads packed weights (packed_weight.h) and no graph is recorded, the packed copy
// takes the place of the plain one. A weight that ops read in both forms stays plain.
//
// It holds the numbers and no graph: each use gets a tensor of its own over the same memory, with
// its own node where grad mode is on. So it keeps no weight alive, and works in grad mode, no_grad
// and inference_mode alike.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/TensorBase.h>
#include <c10/core/Stream.h>
#include <c10/core/SymInt.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "policy/dtype.h"
#include "weights/packed_weight.h"

namespace habana_mp {

// Why a copy was not used any longer.
enum class Ended : std::uint8_t {
  Version,       // changed in place, as autograd knows it
  Storage,       // other memory, sizes, strides or dtype
  Alias,         // an alias of its memory was taken (Tensor.data, untyped_storage, data_ptr), or
                 // something wrote to it that moves no version counter
  Optimizer,     // an optimizer made a step
  DisableCasts,  // a disable_casts ended
  Samples,       // its numbers are others, and nothing else showed it
  Shared,        // another tensor shares its memory
  Foreign,       // its memory is somebody else's, too: NumPy, a DLPack capsule, another process, a
                 // buffer, or a collective that goes on
  Written,       // the copy was written to by who got it, or an alias of it was taken
  Freed,         // the weight is gone
};
inline constexpr std::array<const char*, 10> kEndedNames = {
    "version", "storage", "alias",   "optimizer", "disable_casts",
    "samples", "shared",  "foreign", "written",   "freed"};

class WeightCache {
 public:
  struct Info {
    std::size_t entries = 0;
    std::size_t packed = 0;  // of them
    std::size_t bytes = 0;   // of the copies
    std::size_t limit = 0;
    std::size_t hits = 0;       // copies used again
    std::size_t misses = 0;     // casts into new memory
    std::size_t refreshed = 0;  // casts into the memory of a copy that had ended
    std::array<std::size_t, kEndedNames.size()> ended{};
  };

  // Who asks for a cast: one that holds the weight by its Python object alone, so that any other
  // hold of the tensor shows, or one that does not know how often its callers hold it.
  enum class Caller : std::uint8_t { Python, Dispatcher };

  // Whether what writes to a weight goes on. Called on any thread, without the cache's lock.
  using GoesOn = std::function<bool()>;

  // Called before the cache looks for a copy, where it is set, on any thread.
  std::atomic<void (*)()> before_look = nullptr;

  // Whether a cast of an ordinary tensor (cast/numbers.h) may be cached: asked before cast().
  static bool accepts(const at::Tensor& tensor, DType to);
  // Whether weights of so many numbers and dimensions may be: what is known of them in a compiler's
  // trace.
  static bool accepts_size(const c10::SymInt& numel, std::int64_t dims);

  // The cast of a weight that is accepted, differentiable. On any thread, with or without the GIL.
  // `was_cached`, where given, is set to whether the copy was there already.
  at::Tensor cast(const at::Tensor& weight, DType to, Caller caller, bool* was_cached = nullptr);

  // The same, packed in a layout other than Plain: for an op that records no graph. Undefined, and
  // nothing is counted, where the copy of the weight is to be a plain one; in 8 bits it is rounded
  // for this use then. `images`: of pack().
  struct Packed {
    at::Tensor copy;
    const void* data = nullptr;  // null where torch does not tell
  };
  Packed packed(const at::Tensor& weight, DType to, const Form& form, Caller caller,
                bool& was_cached, at::IntArrayRef images = {});

  // A call passes a weight on to torch, which holds it until end_pass() and looks for its copy as
  // Dispatcher. Whether anybody else holds it shows here: the caller has it from its Python object
  // and holds it no further, as others that pass it on meanwhile are counted.
  void begin_pass(const at::Tensor& weight);
  void end_pass(const c10::StorageImpl* weight);

  // Why a tensor that may be a weight is cast at every use, if it is: Shared or Foreign. The caller
  // has it from its Python object and holds it no further.
  std::optional<Ended> why_never_kept(const at::Tensor& weight);

  // Every copy has ended.
  void end_all(Ended why);
  // An optimizer of these parameters has made a step. The copy of a weight that is frozen, and none
  // of them, stays: that of a base under adapters.
  void end_step(const std::vector<at::Tensor>& parameters);
  // Another number after each of these: weights may be others though their versions are not.
  std::uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }

  // The backward pass has computed the gradient of the weight in this memory. Where a step follows
  // one backward pass the copy will not be used again, so its memory is given back, unless the
  // weight was used again, after this and before the step, the last time (gradient accumulation).
  void end_backward(const c10::StorageImpl* weight);

  // Somebody gets an alias of the tensor's memory and may write through it now, or, where it is
  // `exported`, at any time. The tensor may be one over a copy, too.
  void end_alias(const at::Tensor& tensor, bool exported);

  // Somebody writes to the tensors' memory until `goes_on` says that it is over.
  void begin_writes(const std::vector<at::Tensor>& tensors, const GoesOn& goes_on);
  // In a forked child, where what writes does not go on. What it is asked by is not freed there: a
  // process group that the parent has left waits for its threads then, which the child lacks.
  // Nor do the calls that pass weights on.
  void leave_others_behind();

  Info info();
  void clear();  // the counts too. What is exported stays known
  // Bytes that the copies may take. 0 switches the cache off.
  void set_limit(std::size_t bytes);

  ForkSafeMutex mutex;

 private:
  static constexpr std::uint32_t kPatience = 8;
  static constexpr std::uint32_t kMostPatience = 1u << 24;

  // What a weight was like when its copy was made.
  struct State {
    c10::VariableVersion counter;  // held, so that no other counter can have its address
    std::uint32_t version = 0;
    const void* data = nullptr;
    std::uint64_t samples = 0;
    std::uint64_t epoch = 0;
    std::uint64_t ends = 0;             // of aliases, of all weights, until then
    std::optional<c10::Stream> stream;  // where casts are queued on one
  };
  struct Entry {
    Entry(c10::weak_intrusive_ptr<c10::StorageImpl> of, std::uint64_t now)
        : weight(std::move(of)), last_end(now) {}
    c10::weak_intrusive_ptr<c10::StorageImpl> weight;
    // When an alias of it was taken the last time, or the entry was made: a cast that had begun
    // before may have read older numbers.
    std::uint64_t last_end;
    std::uint64_t last_step = 0;  // the epoch of the last step of an optimizer that has the weight
    State state;
    at::Tensor copy;  // not defined while it is being made
    std::uint32_t copy_version = 0;
    Form form;
    std::size_t bytes = 0;  // of the copy
    const void* packed_data = nullptr;
    // Where a plain copy has been needed once, one is packed when so many more uses would do with
    // it than would not. Each time that it is needed plain after all, before the weight has
    // changed, that takes four times as many: a weight that is used both ways comes to rest.
    bool wanted_plain = false;
    std::uint32_t packable = 0;
    std::uint32_t patience = kPatience;
    bool exported = false;  // somebody may write to the weight at any time
    bool held = false;      // somebody held it when that could be seen the last time
    std::uint32_t passes = 0;
    bool after_backward = false;

    // Who holds a weight does not show while calls pass it on: torch may hold it for them.
    Caller sees_holders(Caller caller) const { return passes > 0 ? Caller::Dispatcher : caller; }
  };
  // A copy that may be used, or the memory to make one in.
  struct Found {
    Packed copy{};
    at::Tensor memory{};
    bool keep = false;  // one that is made
  };
  using Entries = std::unordered_map<const c10::StorageImpl*, Entry>;
  struct Writes {
    std::vector<const c10::StorageImpl*> storages;  // to be compared, not to be followed
    GoesOn go_on;
  };

  // A stretch of code that has the cache for itself. Tensors and entries are freed after it: on
  // some devices that runs code that waits for other locks, and memory that Python has seen waits
  // for the GIL.
  struct Section {
    explicit Section(ForkSafeMutex& mutex) : lock(mutex) {}
    std::vector<at::Tensor> freed;
    std::vector<Entry> gone;
    std::lock_guard<ForkSafeMutex> lock;
  };

  Packed copy_of(const at::Tensor& weight, DType to, const Form& form, Caller caller,
                 bool& was_cached, at::IntArrayRef images);
  static std::optional<Ended> why_never_kept(const at::Tensor& weight, bool others_write);
  static State state_of(const at::Tensor& weight, const std::optional<c10::Stream>& stream);
  static bool has_this_form(Entry& entry, const Form& form, bool valid, bool never_kept);
  std::optional<Found> find(const at::Tensor& weight, State& now, DType to, const Form& form,
                            Caller caller);
  std::optional<Ended> why_ended(const Entry& entry, const State& now, const at::Tensor& weight,
                                 DType to) const;
  at::Tensor take(Section& section, Entry& entry, const at::Tensor& weight, DType to);
  Entry& entry_of(Section& section, const at::Tensor& weight);
  bool store(const at::Tensor& weight, State state, const Packed& made, const Form& form);
  at::Tensor release(Entry& entry);
  void begin_epoch(bool after_step);
  void drop_copies(Section& section);
  Entries::iterator drop(Section& section, Entries::iterator it);
  void sweep(Section& section);
  void settle_writes();
  bool is_written(const c10::StorageImpl* storage) const;

  Entries entries_;
  std::unordered_map<const c10::StorageImpl*, Entry*> by_copy_;
  std::vector<std::shared_ptr<const Writes>> writes_;
  std::atomic<bool> any_writes_ = false;
  std::size_t bytes_ = 0;
  std::size_t limit_ = 0;
  static constexpr std::size_t kSweepBytes = std::size_t{8} << 20;
  std::size_t sweep_at_ = 64;  // entries
  std::size_t sweep_at_bytes_ = kSweepBytes;
  std::atomic<std::uint64_t> epoch_ = 0;
  std::uint64_t all_ended_ = 0;  // the epoch in which every copy ended the last time
  Ended all_ended_why_ = Ended::Optimizer;
  std::uint64_t ends_ = 0;
  Info counts_;
  bool keep_after_backward_ = true;
  bool used_after_backward_ = false;   // since the last step
  std::atomic<bool> enabled_ = false;  // limit_ > 0, to be read without the lock
};

WeightCache& weight_cache();

}  // namespace habana_mp
