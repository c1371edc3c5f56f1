#include "watch/backward_pass.h"

#include <map>
#include <mutex>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/name_numbers.h"
#include "base/process_wide.h"
#include "scope/regions.h"
#include "watch/where.h"

namespace habana_mp::watch {
namespace {

constexpr std::size_t kMostPasses = 64;

struct Losses {
  ForkSafeMutex mutex;
  std::map<int, std::uint32_t> of_passes;  // the last ones
};

Losses& losses() { return process_wide<Losses>(); }

// The passes whose nodes run, one inside another.
std::vector<int>& running() {
  thread_local std::vector<int> passes;
  return passes;
}

}  // namespace

BackwardPass backward_pass() {
  const int number = running().empty() ? autocast::graph_task() : running().front();
  {
    const std::lock_guard guard(losses().mutex);
    const auto known = losses().of_passes.find(number);
    if (known != losses().of_passes.end()) return {number, known->second};
  }
  std::uint32_t loss = 0;
  {
    const pybind11::gil_scoped_acquire gil;
    loss = number_of(source_here());
  }
  const std::lock_guard guard(losses().mutex);
  auto& known = losses().of_passes;
  loss = known.try_emplace(number, loss).first->second;
  if (known.size() > kMostPasses) known.erase(known.begin());
  return {number, loss};
}

void enter_node() { running().push_back(autocast::graph_task()); }

void leave_node() { running().pop_back(); }

}  // namespace habana_mp::watch
