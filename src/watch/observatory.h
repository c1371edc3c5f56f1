// What the reports that are open share: their sites, and what is known of tensors.
// The observer's own: others ask torch/observer.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "report/report.h"
#include "report/name_numbers.h"
#include "base/process_wide.h"
#include "watch/tensor_history.h"

namespace habana_mp::watch {

struct Observatory {
  std::mutex mutex;
  std::vector<std::shared_ptr<report::Report>> open;
  report::Sites sites;
  report::Paths paths;
  TensorHistories histories;
};

inline Observatory& all() { return process_wide<Observatory>(); }

inline std::atomic<std::uint64_t> epoch{0};  // of the open reports, 0 while there is none

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
  site.fate = key.fate;
  if (site.op.empty()) site.op = name_of(key.op);
  const std::lock_guard guard(all().mutex);
  return all().sites.add(key, std::move(site));
}

}  // namespace habana_mp::watch
