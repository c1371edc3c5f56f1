#include "report/report.h"

#include <algorithm>
#include <utility>

namespace habana_mp::report {
namespace {

constexpr std::uint32_t kLongestPath = 8;
constexpr std::size_t kMostWanting = 16;  // sites that are named of those that want a tensor

std::uint64_t mixed(std::uint64_t value) { return (value ^ (value >> 29)) * 0x9E3779B97F4A7C15U; }

}  // namespace

std::size_t SiteKeyHash::operator()(const SiteKey& key) const {
  const std::uint64_t where = (std::uint64_t{key.op} << 32) | key.module;
  const std::uint64_t what = (std::uint64_t{key.context} << 16) |
                             (static_cast<std::uint64_t>(key.front_end) << 8) |
                             static_cast<std::uint64_t>(key.fate);
  return mixed(mixed(where) + what);
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

CastCount& Row::casts_of(DType from, DType to) {
  for (CastCount& count : casts) {
    if (count.from == from && count.to == to) return count;
  }
  return casts.emplace_back(CastCount{.from = from, .to = to});
}

Row& Report::row_of(SiteId site) {
  if (site >= rows_.size()) rows_.resize(site + 1);
  return rows_[site];
}

void Report::add_call(SiteId site, const Call& call) {
  Row& row = row_of(site);
  ++row.calls;
  row.ns += call.ns;
  row.given |= call.given;
  row.ran |= call.ran;
  for (const Cast& cast : call.casts) {
    CastCount& count = row.casts_of(cast.from, cast.to);
    ++count.count;
    count.cached += cast.cached ? 1 : 0;
    count.bytes += cast.cached ? 0 : cast.bytes;
    count.ns += cast.ns;
    row.cast_ns += cast.ns;
    add_moment(site, cast, cast.cached ? Kind::Cached : Kind::Cast);
  }
}

void Report::add_backward(SiteId site, const Cast& cast) {
  // Of the site whose cast it is the backward of, so that from and to are those of the forward.
  CastCount& count = row_of(site).casts_of(cast.to, cast.from);
  ++count.backward;
  count.backward_bytes += cast.bytes;
  count.backward_ns += cast.ns;
  add_moment(site, cast, Kind::Backward);
}

void Report::add_moment(SiteId site, const Cast& cast, Kind kind) {
  if (seen_++ % stride_ != 0) return;
  if (moments_.size() == kMostMoments) {  // every second one stays
    for (std::size_t i = 0; i < kMostMoments / 2; ++i) moments_[i] = moments_[2 * i];
    moments_.resize(kMostMoments / 2);
    stride_ *= 2;
  }
  const std::uint64_t after = cast.start_ns > start_ns_ ? cast.start_ns - start_ns_ : 0;
  const auto lasted = static_cast<std::uint32_t>(std::min<std::uint64_t>(cast.ns, UINT32_MAX));
  moments_.push_back({after, lasted, site, cast.from, cast.to, kind});
}

void Report::add_ping_pong(PathId path, SiteId site, std::uint64_t ns) {
  const auto found = ping_pong_.find({path, site});
  if (found == ping_pong_.end() && ping_pong_.size() >= kMostPaths) return;
  PingPong& seen = found == ping_pong_.end() ? ping_pong_[{path, site}] : found->second;
  ++seen.count;
  seen.ns += ns;
}

void Report::add_recast(SiteId maker, SiteId first, SiteId site, const Cast& cast, unsigned again) {
  const RecastKey key{maker, maker == kNone ? first : kNone, cast.from, cast.to};
  if (recast_.size() >= kMostSites && !recast_.contains(key)) return;
  Recast& seen = recast_[key];
  seen.times += again == 2 ? 2 : 1;
  seen.needed += again == 2 ? 1 : 0;
  seen.bytes += cast.bytes;
  seen.ns += cast.ns;
  for (const SiteId wanting : {first, site}) {
    if (seen.sites.size() < kMostWanting &&
        std::find(seen.sites.begin(), seen.sites.end(), wanting) == seen.sites.end()) {
      seen.sites.push_back(wanting);
    }
  }
}

std::size_t Report::bytes() const {
  std::size_t all = rows_.capacity() * sizeof(Row) + moments_.capacity() * sizeof(Moment);
  for (const Row& row : rows_) all += row.casts.capacity() * sizeof(CastCount);
  constexpr std::size_t kNode = 48;  // of a map
  all += ping_pong_.size() * (sizeof(PingPongKey) + sizeof(PingPong) + kNode);
  for (const auto& [key, seen] : recast_) {
    all += sizeof(key) + sizeof(seen) + kNode + seen.sites.capacity() * sizeof(SiteId);
  }
  return all;
}

}  // namespace habana_mp::report
