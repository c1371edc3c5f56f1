// Whether anybody listens to what the engine does: without a listener a call pays one flag test.
// The instruments above set the flag.
#pragma once

#include <atomic>

namespace habana_mp::listen {

// A bit each.
enum class Hears : unsigned {
  Decisions = 1,  // a rule has decided a call
  Calls = 2,      // calls from their beginning to their end, with their casts
  Numbers = 4,    // the numbers that calls compute
};

namespace detail {
inline std::atomic<unsigned> heard{0};  // bits of Hears
}

inline bool anyone_listens() { return detail::heard.load(std::memory_order_relaxed) != 0; }

inline bool anyone_hears(Hears what) {
  return (detail::heard.load(std::memory_order_relaxed) & static_cast<unsigned>(what)) != 0;
}

inline void set_heard(Hears what, bool heard) {
  const auto bit = static_cast<unsigned>(what);
  if (heard) {
    detail::heard.fetch_or(bit, std::memory_order_relaxed);
  } else {
    detail::heard.fetch_and(~bit, std::memory_order_relaxed);
  }
}

}  // namespace habana_mp::listen
