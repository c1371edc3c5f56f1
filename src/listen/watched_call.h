// A decided call of an op as whoever listens follows it, from its decision to its end. The observer
// is the instruments' (watch/observer.h); the engine runs without one. Only what calls it while
// somebody listens pays for more than the flag test of anyone_listens().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "listen/event.h"
#include "listen/hears.h"

namespace habana_mp::listen {

class Observer {
 public:
  // Whether the call is followed from now on. Throws what a listener throws.
  virtual bool begins(const DecidedCall& call,
                      c10::function_ref<c10::ArrayRef<at::Tensor>()> inputs) = 0;
  // Of the innermost call of this thread that is followed:
  virtual bool in_call() = 0;
  virtual void casts(const at::Tensor& source, const at::Tensor& result, const Cast& cast) = 0;
  // The casts that it made do not count: they are made again.
  virtual void forget_casts() = 0;
  // It has failed and is begun again under another decision: it does not count.
  virtual void abandon() = 0;
  virtual void ends(c10::ArrayRef<at::Tensor> results) = 0;

  // What the autograd node of a cast remembers: which call made it, 0 for none.
  virtual std::uint64_t origin_here() = 0;
  // Runs `cast`, which casts the gradient, in the backward pass of the call of that origin.
  virtual at::Tensor cast_back(std::uint64_t origin, const at::Tensor& gradient, DType to,
                               c10::function_ref<at::Tensor()> cast) = 0;

 protected:
  ~Observer() = default;
};

// Set before anybody listens, for good.
inline std::atomic<Observer*> observer{nullptr};

class WatchedCall {
 public:
  WatchedCall() = default;
  ~WatchedCall() { end({}); }
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

  void begin(const DecidedCall& call, c10::function_ref<c10::ArrayRef<at::Tensor>()> inputs) {
    begun_ = observer.load()->begins(call, inputs);
  }
  void forget_casts() {
    if (begun_) observer.load()->forget_casts();
  }
  void abandon() {
    if (std::exchange(begun_, false)) observer.load()->abandon();
  }
  void end(c10::ArrayRef<at::Tensor> results) {
    if (std::exchange(begun_, false)) observer.load()->ends(results);
  }
  bool begun() const { return begun_; }

 private:
  bool begun_ = false;
};

// The observer, if this thread is in a call that it follows; its casts are then counted.
inline Observer* observer_of_call() {
  if (!anyone_hears(Hears::Calls)) return nullptr;
  Observer* here = observer.load();
  return here->in_call() ? here : nullptr;
}

}  // namespace habana_mp::listen
