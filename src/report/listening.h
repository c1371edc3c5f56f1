// The listeners of calls: the cast log, the reports, and whoever else joins by listen().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "listen/hears.h"
#include "report/choice.h"
#include "report/event.h"
#include "report/values.h"

namespace habana_mp::report {

using listen::Hears;

// A tensor that a call is given, before any cast.
struct Given {
  SiteId maker;  // the site that made it; kNone: a weight, or from elsewhere
  SiteId site;   // that of the call
  DType dtype;
  bool zero_dim;  // beside others such a tensor changes no dtype

  auto operator<=>(const Given&) const = default;
};

class Listener {
 public:
  // `what`: Decisions, which is decided(), or Calls, which are the others.
  // `step`: of calls, it hears those of the threads of this step alone; 0: of all threads.
  explicit Listener(Hears what, std::uint64_t step = 0) : what_(what), step_(step) {}
  virtual ~Listener() = default;

  Hears what() const { return what_; }
  std::uint64_t step() const { return step_; }

  // A rule has decided a call that is about to run. With the GIL; what it throws ends the call.
  virtual void decided(const Call& /*call*/) {}

  // The others are called under the lock of the observer (watch/observer.h), with or without the
  // GIL: they must be short and must not run Python.

  // A call has ended.
  virtual void ended(const Call& /*call*/, const Site& /*site*/) {}
  // A call begins and is given a tensor, before any cast. `first`: of those that may be cast.
  virtual void given(const Given& /*tensor*/, std::uint64_t /*numbers*/, bool /*first*/) {}
  // The gradient of a cast that a call of the site made has been cast back.
  virtual void cast_back(SiteId /*site*/, const Cast& /*cast*/) {}
  // The numbers of a call of the site have been measured.
  virtual void measured(SiteId /*site*/, const Values& /*values*/) {}
  // The gradient of a result of the site has come.
  virtual void changed(SiteId /*site*/, const Change& /*change*/) {}
  // A call of `reader` has handed back its part of that gradient. kNone: all have.
  virtual void read(SiteId /*maker*/, SiteId /*reader*/, const Change& /*change*/) {}
  // Between the two a backward pass is one of a random sum of outputs, in place of a loss.
  virtual void begin_projection() {}
  virtual void end_projection() {}
  // The same of numbers that a choice is made by: one of a random sum of their margins. `choice`:
  // by number_of().
  virtual void begin_choice(std::uint32_t /*choice*/) {}
  virtual void end_choice() {}
  // Calls of the site have chosen.
  virtual void chose(SiteId /*site*/, std::uint32_t /*choice*/, const Choice& /*made*/) {}
  // What a loss, by its line, or the outputs (kOutputs) differ by where so many choices before it
  // are made otherwise: squares.
  virtual void decided_by_choices(std::uint32_t /*loss*/, double /*squares*/,
                                  std::uint64_t /*otherwise*/) {}
  // A graph that torch.compile has compiled has begun, by the number that it has there ("0/1").
  virtual void compiled_ran(const std::string& /*graph*/) {}
  // A backward pass has ended.
  virtual void backward_ended(std::uint64_t /*ns*/, bool /*raised*/) {}
  // A call of the site has undone the cast that the path began with; `ns`: of both casts.
  virtual void cast_undone(PathId /*path*/, SiteId /*site*/, std::uint64_t /*ns*/) {}
  // A call of the site has cast a tensor for the `times`th time, unchanged, to the same dtype.
  // `maker`: the site that made the tensor, kNone for what came from elsewhere; `first`: the site
  // that had it cast first.
  virtual void cast_repeated(SiteId /*maker*/, SiteId /*first*/, SiteId /*site*/,
                             const Cast& /*cast*/, unsigned /*times*/) {}

 protected:
  Listener(const Listener&) = default;

 private:
  const Hears what_;
  const std::uint64_t step_;
};

// The listeners of decisions are read and changed with the GIL, those of calls under the observer's
// lock, by watch::listen() alone.
using Listeners = std::vector<std::shared_ptr<Listener>>;
const Listeners& listeners(Hears what);

void listen(std::shared_ptr<Listener> listener);
// Whether it was listening.
bool unlisten(const Listener& listener);

// Calls decided() of all who hear of decisions. With the GIL.
void notify_decided(const Call& call);

}  // namespace habana_mp::report
