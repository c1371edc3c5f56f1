#include "report/report.h"

#include <algorithm>
#include <cmath>

namespace habana_mp::report {
namespace {

constexpr double kMostChange = 1e90;      // products and their sums have a place in JSON
constexpr std::size_t kMostReaders = 16;  // of what one site makes
constexpr std::size_t kMostWanting = 16;  // sites that are named of those that want a tensor

template <typename T>
T& at(std::vector<T>& of_sites, SiteId site) {
  if (site >= of_sites.size()) of_sites.resize(site + 1);
  return of_sites[site];
}

template <typename T>
T& of_line(std::vector<T>& found, std::uint32_t line) {
  const auto known = std::ranges::find(found, line, &T::line);
  return known != found.end() ? *known : found.emplace_back(T{.line = line});
}

std::size_t bytes_of(const Signed& passes) {
  std::size_t numbers = passes.ran.capacity() + passes.low.capacity() + passes.rounding.capacity();
  for (const auto& format : passes.formats) numbers += format.capacity();
  return sizeof(passes) + numbers * sizeof(double);
}

}  // namespace

CastCount& Row::casts_of(DType from, DType to) {
  for (CastCount& count : casts) {
    if (count.from == from && count.to == to) return count;
  }
  return casts.emplace_back(CastCount{.from = from, .to = to});
}

Row& Report::row_of(SiteId site) { return at(rows_, site); }

void Report::ended(const Call& call, const Site&) {
  if (is_aside()) return;
  Row& row = row_of(call.site);
  ++row.calls;
  row.ns += call.ns;
  row.input_dtypes |= call.input_dtypes;
  row.ran |= call.ran;
  for (std::size_t i = 0; i < row.made.size(); ++i) row.made[i] += call.made[i];
  if (call.in_optimizer) optimizer_ns_ += call.ns;
  for (const Cast& cast : call.casts) {
    CastCount& count = row.casts_of(cast.from, cast.to);
    ++count.count;
    count.cached += cast.cached ? 1 : 0;
    count.bytes += cast.cached ? 0 : cast.bytes;
    count.ns += cast.ns;
    row.cast_ns += cast.ns;
    add_moment(call.site, cast, cast.cached ? Kind::Cached : Kind::Cast);
  }
}

void Report::given(const Given& tensor, std::uint64_t numbers, bool first) {
  if (!has_values_ || is_aside()) return;
  if (edges_.size() >= kMostSites && !edges_.contains(tensor)) return;
  Edge& edge = edges_[tensor];
  ++edge.count;
  edge.numbers += numbers;
  edge.first += first ? 1 : 0;
}

void Report::cast_back(SiteId site, const Cast& cast) {
  if (is_aside()) return;
  // Of the site whose cast it is the backward of, so that from and to are those of the forward.
  CastCount& count = row_of(site).casts_of(cast.to, cast.from);
  ++count.backward;
  count.backward_bytes += cast.bytes;
  count.backward_ns += cast.ns;
  add_moment(site, cast, Kind::Backward);
}

void Report::measured(SiteId site, const Values& values) {
  if (!has_values_ || is_aside()) return;
  Values& all = at(values_, site);
  all.add(values);
  // These are of one call.
  all.ran_longest_ns = std::max(all.ran_longest_ns, values.ran_ns);
  all.other_longest_ns = std::max(all.other_longest_ns, values.other_ns);
  all.backward_ran_longest_ns = std::max(all.backward_ran_longest_ns, values.backward_ran_ns);
  all.backward_other_longest_ns = std::max(all.backward_other_longest_ns, values.backward_other_ns);
}

void Report::changed(SiteId site, const Change& change) {
  if (!has_values_) return;
  if (projecting_) {
    Projection& own = at(projection_, site);
    at(projected_, site).add(static_cast<std::uint64_t>(projections_ - 1), change);
    if (change.format) {
      own.formats[*change.format] += change.low;
      return;
    }
    Changes& sum = own.changes;
    ++sum.count;
    sum.ran += change.ran;
    sum.low += change.low;
    sum.rounding += change.rounding;
    return;
  }
  const std::uint32_t line = choosing_ != 0 ? choosing_ : change.loss;
  Loss& loss = of_line(losses_, line);
  if (change.pass > loss.last_pass) {  // the engine counts them
    loss.last_pass = change.pass;
    ++loss.passes;
  }
  LossChanges& known = of_line(at(changes_, site), line);
  known.passes.add(loss.passes - 1, change);
  if (change.format) return known.formats[*change.format].add(change.pass, change.low);
  if (known.last.pass != change.pass) known.last = {.pass = change.pass};
  const auto grown = [](double& sum, double part) {
    const double more = part * (2 * sum + part);
    sum += part;
    return more;
  };
  ++known.changes.count;
  known.changes.ran += change.ran;
  known.changes.low += change.low;
  known.changes.squares_ran += grown(known.last.ran, change.ran);
  known.changes.squares_low += grown(known.last.low, change.low);
  known.changes.squares_rounding += grown(known.last.rounding, change.rounding);
}

void Reads::add(std::int64_t of_pass, SiteId reader, double change) {
  if (pass != of_pass) now.clear();
  pass = of_pass;
  auto own = std::ranges::find(now, reader, &std::pair<SiteId, double>::first);
  if (own == now.end()) {
    // All together come last.
    if (now.size() >= kMostReaders && reader != kNone) return;
    own = now.insert(now.end(), {reader, 0});
  }
  for (const auto& [other, sum] : now) {
    const double more = other == reader ? change * (2 * sum + change) : change * sum;
    products[std::minmax(reader, other)] += more;
  }
  own->second += change;
}

void Report::read(SiteId maker, SiteId reader, const Change& change) {
  // What overflows says nothing of its readers.
  if (!has_values_ || !(std::abs(change.rounding) < kMostChange)) return;
  const ReadsKey key{maker, projecting_ ? kOutputs : choosing_ != 0 ? choosing_ : change.loss};
  if (reads_.size() >= kMostSites && !reads_.contains(key)) return;
  // Passes of a loss have numbers above zero.
  reads_[key].add(projecting_ ? -projections_ : change.pass + 1, reader, change.rounding);
}

void Report::chose(SiteId site, std::uint32_t choice, const Choice& made) {
  if (!has_values_) return;
  Loss& found = of_line(losses_, choice);
  found.chose = site;
  found.choice.add(made);
}

void Report::decided_by_choices(std::uint32_t loss, double squares, std::uint64_t otherwise) {
  if (!has_values_) return;
  decided_[loss].squares += squares;
  decided_[loss].otherwise += otherwise;
}

void Report::begin_projection() {
  projecting_ = true;
  ++projections_;
}

void Report::end_projection() {
  projecting_ = false;
  for (std::size_t site = 0; site < projection_.size(); ++site) {
    const Changes& one = projection_[site].changes;
    const auto& formats = projection_[site].formats;
    if (one.count == 0) continue;
    Values values;
    values.projections = 1;
    values.projected_ran = one.ran * one.ran;
    values.projected_low = one.low * one.low;
    values.projected_rounding = one.rounding * one.rounding;
    for (std::size_t i = 0; i < formats.size(); ++i)
      values.formats[i].projected = formats[i] * formats[i];
    measured(static_cast<SiteId>(site), values);
  }
  projection_.clear();
}

const Values& Report::values(SiteId site) const {
  static const Values none;
  return site < values_.size() ? values_[site] : none;
}

const std::vector<Report::LossChanges>& Report::changes(SiteId site) const {
  static const std::vector<LossChanges> none;
  return site < changes_.size() ? changes_[site] : none;
}

const Signed& Report::projected(SiteId site) const {
  static const Signed none;
  return site < projected_.size() ? projected_[site] : none;
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

void Report::compiled_ran(const std::string& graph) {
  if (compiled_.size() < kMostSites || compiled_.contains(graph)) ++compiled_[graph];
}

void Report::cast_undone(PathId path, SiteId site, std::uint64_t ns) {
  const auto found = ping_pong_.find({path, site});
  if (found == ping_pong_.end() && ping_pong_.size() >= kMostPaths) return;
  PingPong& seen = found == ping_pong_.end() ? ping_pong_[{path, site}] : found->second;
  ++seen.count;
  seen.ns += ns;
}

void Report::cast_repeated(SiteId maker, SiteId first, SiteId site, const Cast& cast,
                           unsigned times) {
  const RecastKey key{maker, maker == kNone ? first : kNone, cast.from, cast.to};
  if (recast_.size() >= kMostSites && !recast_.contains(key)) return;
  Recast& seen = recast_[key];
  seen.times += times == 2 ? 2 : 1;
  seen.needed += times == 2 ? 1 : 0;
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
  for (const Signed& row : projected_) all += bytes_of(row);
  for (const auto& row : changes_) {
    all += sizeof(row);
    for (const LossChanges& each : row) all += sizeof(each) + bytes_of(each.passes);
  }
  constexpr std::size_t kNode = 48;  // of a map
  for (const auto& [key, reads] : reads_)
    all += sizeof(key) + sizeof(reads) + kNode + reads.products.size() * (kNode + sizeof(double));
  all += edges_.size() * (sizeof(Given) + sizeof(Edge) + kNode);
  for (const auto& [graph, ran] : compiled_) all += sizeof(ran) + kNode + graph.capacity();
  all += ping_pong_.size() * (sizeof(PingPongKey) + sizeof(PingPong) + kNode);
  for (const auto& [key, seen] : recast_) {
    all += sizeof(key) + sizeof(seen) + kNode + seen.sites.capacity() * sizeof(SiteId);
  }
  return all;
}

}  // namespace habana_mp::report
