// Who wants to hear of calls: the cast log, the report. One flag test at every patched call while
// nobody does.
#pragma once

#include <atomic>

namespace habana_mp::report {

enum class Listener : unsigned { Log = 1, Report = 2 };

inline std::atomic<unsigned> listeners{0};

inline bool anyone_listens() { return listeners.load(std::memory_order_relaxed) != 0; }

inline bool listens(Listener who) {
  return (listeners.load(std::memory_order_relaxed) & static_cast<unsigned>(who)) != 0;
}

inline void set_listens(Listener who, bool on) {
  if (on) {
    listeners.fetch_or(static_cast<unsigned>(who), std::memory_order_relaxed);
  } else {
    listeners.fetch_and(~static_cast<unsigned>(who), std::memory_order_relaxed);
  }
}

}  // namespace habana_mp::report
