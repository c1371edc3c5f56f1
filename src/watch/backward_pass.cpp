#include "watch/backward_pass.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/name_numbers.h"
#include "base/process_wide.h"
#include "scope/regions.h"
#include "watch/observatory.h"
#include "watch/where.h"

namespace habana_mp::watch {
namespace {

constexpr std::size_t kMostPasses = 64;

struct Losses {
  ForkSafeMutex mutex;
  std::map<int, std::uint32_t> of_passes;  // the last ones
  std::map<int, double> scales;            // of those whose loss has one
  double next_scale = 1;
  std::atomic<int> newest{-1};  // torch's engine counts upwards
};

Losses& losses() { return process_wide<Losses>(); }

// The passes whose nodes run, one inside another.
std::vector<int>& running() {
  thread_local std::vector<int> passes;
  return passes;
}

constexpr std::size_t kMostNodes = 1 << 20;
constexpr int kMostSteps = 16;  // calls inside one another

struct Nodes {
  std::atomic<int> wanted{0};
  struct Made {
    std::uint64_t last;
    report::SiteId site;
  };
  std::map<std::uint64_t, Made> made;  // by the first one; with the lock of the observer
};

Nodes& nodes() { return process_wide<Nodes>(); }

}  // namespace

std::uint32_t line_here() {
  const pybind11::gil_scoped_acquire gil;
  return number_of(source_here());
}

BackwardPass backward_pass() {
  const int number = running().empty() ? autocast::graph_task() : running().front();
  const auto found = [number](std::uint32_t loss) {
    const auto scaled = losses().scales.find(number);
    return BackwardPass{number, loss, scaled == losses().scales.end() ? 1 : scaled->second};
  };
  {
    const std::lock_guard guard(losses().mutex);
    const auto known = losses().of_passes.find(number);
    if (known != losses().of_passes.end()) return found(known->second);
  }
  std::uint32_t loss = line_here();
  const std::lock_guard guard(losses().mutex);
  auto& known = losses().of_passes;
  loss = known.try_emplace(number, loss).first->second;
  if (known.size() > kMostPasses) known.erase(known.begin());
  return found(loss);
}

void begin_scaled(double scale) {
  const std::lock_guard guard(losses().mutex);
  losses().next_scale = scale;
}

void enter_node() {
  const int number = autocast::graph_task();
  running().push_back(number);
  if (number <= losses().newest.load(std::memory_order_relaxed)) return;
  const std::lock_guard guard(losses().mutex);
  if (number <= losses().newest.exchange(number)) return;
  const double scale = std::exchange(losses().next_scale, 1);
  if (scale == 1) return;
  auto& scales = losses().scales;
  scales.emplace(number, scale);
  if (scales.size() > kMostPasses) scales.erase(scales.begin());
}

void leave_node() { running().pop_back(); }

void keep_nodes(bool wanted) {
  if (wanted) {
    ++nodes().wanted;
  } else if (--nodes().wanted == 0) {
    const std::lock_guard guard(all().mutex);
    nodes().made.clear();
  }
}

void note_nodes(const report::Call& call) {
  if (nodes().wanted.load(std::memory_order_relaxed) == 0 || call.last_node <= call.first_node)
    return;
  auto& made = nodes().made;
  // Of calls inside one another that begin with the same node the inner one ends first, and stays.
  if (made.size() < kMostNodes)
    made.try_emplace(call.first_node, Nodes::Made{call.last_node, call.site});
}

report::SiteId site_of_node(std::uint64_t number) {
  const std::lock_guard guard(all().mutex);
  const auto& made = nodes().made;
  auto found = made.upper_bound(number);
  for (int step = 0; step < kMostSteps && found != made.begin(); ++step) {
    --found;
    if (number < found->second.last) return found->second.site;
  }
  return report::kNone;
}

}  // namespace habana_mp::watch
