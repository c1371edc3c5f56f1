#include "report/site.h"

#include <algorithm>
#include <utility>

namespace habana_mp::report {
namespace {

constexpr std::uint32_t kLongestPath = 8;

}  // namespace

std::size_t SiteKeyHash::operator()(const SiteKey& key) const {
  const std::uint64_t where = (std::uint64_t{key.op} << 32) | key.module;
  const std::uint64_t what =
      (static_cast<std::uint64_t>(key.front_end) << 8) | static_cast<std::uint64_t>(key.outcome);
  return mixed(mixed(mixed(mixed(where) + what) + key.decider_id) + key.place);
}

SiteId Sites::find(const SiteKey& key) const {
  const auto found = ids_.find(key);
  if (found != ids_.end()) return found->second;
  return sites_.size() > kMostSites ? static_cast<SiteId>(kMostSites) : kNone;
}

SiteId Sites::add(const SiteKey& key, Site site) {
  if (const SiteId known = find(key); known != kNone) return known;
  if (sites_.size() == kMostSites) site = {.op = "others"};
  const auto id = static_cast<SiteId>(sites_.size());
  sites_.push_back(std::move(site));
  ids_.emplace(key, id);
  return id;
}

void Sites::clear() {
  ids_.clear();
  sites_.assign(1, Site{});
}

PathId Paths::begin(SiteId site, DType from, DType to) { return add({kNone, site, from, to, 1}); }

PathId Paths::extend(PathId path, SiteId site) {
  const Step last = steps_[path];
  if (last.length == kLongestPath) return path;
  const PathId longer = add({path, site, last.from, last.to, last.length + 1});
  return longer == kNone ? path : longer;
}

PathId Paths::add(const Step& step) {
  const std::uint64_t key =
      (std::uint64_t{step.before} << 32) | (std::uint64_t{step.site} << 8 & 0xFFFFFF00U) |
      (static_cast<std::uint64_t>(step.from) << 4) | static_cast<std::uint64_t>(step.to);
  if (const auto found = ids_.find(key); found != ids_.end()) return found->second;
  if (steps_.size() > kMostPaths) return kNone;
  const auto id = static_cast<PathId>(steps_.size());
  steps_.push_back(step);
  ids_.emplace(key, id);
  return id;
}

std::vector<SiteId> Paths::sites(PathId path) const {
  std::vector<SiteId> found;
  for (; path != kNone; path = steps_[path].before) found.push_back(steps_[path].site);
  std::reverse(found.begin(), found.end());
  return found;
}

void Paths::clear() {
  ids_.clear();
  steps_.assign(1, Step{});
}

}  // namespace habana_mp::report
