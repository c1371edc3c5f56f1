// What the listeners of calls share: the sites of calls, and what is known of tensors. For this
// folder and the probes: others ask watch/observer.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/name_numbers.h"
#include "base/process_wide.h"
#include "report/listening.h"
#include "report/site.h"
#include "watch/step_threads.h"
#include "watch/tensor_history.h"

namespace habana_mp::watch {

struct Observatory {
  ForkSafeMutex mutex;
  report::Sites sites;
  report::Paths paths;
  TensorHistories histories;
};

inline Observatory& all() { return process_wide<Observatory>(); }

inline std::atomic<std::uint64_t> epoch{0};  // another with each first listener, 0 without one

// The site of a key, described where it is new. Not under the lock: to describe one runs Python.
template <typename Describe>
report::SiteId site_of(const report::SiteKey& key, const Describe& describe) {
  {
    const std::lock_guard guard(all().mutex);
    if (const report::SiteId known = all().sites.find(key); known != report::kNone) return known;
  }
  report::Site site = describe();
  site.module = name_of(key.module);
  site.front_end = key.front_end;
  site.outcome = key.outcome;
  site.place = key.place;
  if (site.op.empty()) site.op = name_of(key.op);
  const std::lock_guard guard(all().mutex);
  return all().sites.add(key, std::move(site));
}

// Calls `notify` with every listener of calls on this thread. With the lock.
template <typename Notify>
void for_listeners(const Notify& notify) {
  for (const auto& listener : report::listeners(report::Hears::Calls)) {
    if (listener->step() == 0 || in_step(listener->step())) notify(*listener);
  }
}

}  // namespace habana_mp::watch
