// The report: which op ran where, in which precision, and what its casts cost. It counts what the
// observer (src/torch/observer.h) tells it; it must not know Python, torch or how a decision is
// made.
//
// It keeps counts, not events, so its memory is bounded by the program that it looks at and not by
// how long it looks: one row for each site (an op in a module under a rule), and of the casts in
// time a sample of fixed size. What would still grow (module paths that never end, say) stops at a
// limit and is counted together.
//
// Whoever calls holds the observer's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/dtype.h"

namespace habana_mp::report {

using SiteId = std::uint32_t;
using PathId = std::uint32_t;
inline constexpr std::uint32_t kNone = 0;  // no site, no path
inline constexpr std::size_t kMostSites = 1 << 16;
inline constexpr std::size_t kMostPaths = 1 << 16;
inline constexpr std::size_t kMostMoments = 1 << 16;

enum class FrontEnd : std::uint8_t { None, Convert, Autocast };

// What became of the calls of a site. The first seven are those of Cause; of the others no rule was
// asked. _core.FATES names these in this order.
enum class Fate : std::uint8_t {
  LeftAlone,
  Lower,
  Fp32,
  Promote,
  InPlace,
  FirstInput,
  RestFp32,
  Off,       // casts were off
  Unlisted,  // no rule, though a policy was in force
  Missed,    // there was a rule, and the call went past it
  Outside,   // no policy was in force
  Backward,  // in a backward pass
};
inline constexpr std::array<const char*, 12> kFateNames = {
    "left alone", "lower", "fp32",     "promote", "in place", "first input",
    "rest fp32",  "off",   "unlisted", "missed",  "outside",  "backward"};

// Where calls are counted together. Equal sites have one id, from 1 on, while a report is open.
struct Site {
  std::string op{};
  std::string module{};
  std::string policy{};
  std::string rule{};
  std::string source{};  // of the first call
  FrontEnd front_end = FrontEnd::None;
  Fate fate = Fate::Unlisted;
};

// The same in numbers, to be looked up at every call.
struct SiteKey {
  std::uint32_t op;       // Names
  std::uint32_t module;   // Names
  std::uint32_t context;  // which rule, of which conversion or region
  FrontEnd front_end;
  Fate fate;

  friend bool operator==(const SiteKey&, const SiteKey&) = default;
};

struct SiteKeyHash {
  std::size_t operator()(const SiteKey& key) const;
};

class Sites {
 public:
  // kNone where the key is new.
  SiteId find(const SiteKey& key) const;
  // The same as an earlier one where `key` is known by now; one for all once there are too many.
  SiteId add(const SiteKey& key, Site site);
  const Site& operator[](SiteId id) const { return sites_[id]; }
  std::size_t size() const { return sites_.size(); }
  void clear();

 private:
  std::unordered_map<SiteKey, SiteId, SiteKeyHash> ids_;
  std::vector<Site> sites_{Site{}};
};

// The ops that a tensor went through since it was last cast: a list that shares its beginning with
// others.
class Paths {
 public:
  struct Step {
    PathId before;
    SiteId site;
    DType from;  // of the cast that the path begins with, in all of its steps
    DType to;
    std::uint32_t length;
  };
  PathId begin(SiteId site, DType from, DType to);
  // The path itself where it has become too long, or there are too many.
  PathId extend(PathId path, SiteId site);
  const Step& operator[](PathId id) const { return steps_[id]; }
  std::vector<SiteId> sites(PathId path) const;
  void clear();

 private:
  PathId add(const Step& step);

  std::unordered_map<std::uint64_t, PathId> ids_;
  std::vector<Step> steps_{Step{}};
};

struct CastCount {
  DType from;
  DType to;
  std::uint64_t count = 0;  // cached ones too
  std::uint64_t cached = 0;
  std::uint64_t bytes = 0;  // of the results that were computed
  std::uint64_t ns = 0;
  std::uint64_t backward = 0;
  std::uint64_t backward_bytes = 0;
  std::uint64_t backward_ns = 0;
};

struct Row {
  std::uint64_t calls = 0;
  std::uint64_t ns = 0;       // without ops inside that have rows of their own
  std::uint64_t cast_ns = 0;  // of that
  unsigned given = 0;         // dtypes, a bit each
  unsigned ran = 0;
  std::vector<CastCount> casts;

  CastCount& casts_of(DType from, DType to);
};

struct Cast {
  DType from;
  DType to;
  bool cached;
  std::uint64_t bytes;
  std::uint64_t start_ns;
  std::uint64_t ns;
};

struct Call {
  std::uint64_t ns = 0;
  unsigned given = 0;
  unsigned ran = 0;
  std::span<const Cast> casts{};
};

enum class Kind : std::uint8_t { Cast, Cached, Backward };

struct Moment {
  std::uint64_t start_ns;
  std::uint32_t ns;
  SiteId site;
  DType from;
  DType to;
  Kind kind;
};

// There and back: a cast that undoes the one that the path began with.
struct PingPong {
  std::uint64_t count = 0;
  std::uint64_t ns = 0;  // of both casts
};

// One tensor cast to one dtype more than once.
struct Recast {
  std::uint64_t times = 0;   // casts of such tensors
  std::uint64_t needed = 0;  // as many as there were tensors
  std::uint64_t bytes = 0;   // of those beyond
  std::uint64_t ns = 0;
  std::vector<SiteId> sites;  // that wanted them
};

class Report {
 public:
  explicit Report(std::uint64_t start_ns) : start_ns_(start_ns) {}

  void add_call(SiteId site, const Call& call);
  void add_backward(SiteId site, const Cast& cast);
  void add_ping_pong(PathId path, SiteId site, std::uint64_t ns);
  // `maker`: the site that made the tensor, kNone for what came from elsewhere; `first`: the one
  // that had it cast first. `again` is 2 for the second cast of a tensor, and so on.
  void add_recast(SiteId maker, SiteId first, SiteId site, const Cast& cast, unsigned again);
  void add_backward_ns(std::uint64_t ns) { backward_ns_ += ns; }

  std::uint64_t start_ns() const { return start_ns_; }
  std::size_t row_count() const { return rows_.size(); }
  const Row& row(SiteId site) const { return rows_[site]; }
  const std::vector<Moment>& moments() const { return moments_; }
  std::uint64_t stride() const { return stride_; }  // one in so many casts is a moment
  struct PingPongKey {
    PathId path;
    SiteId site;
    auto operator<=>(const PingPongKey&) const = default;
  };
  struct RecastKey {
    SiteId maker;
    SiteId first;  // where nobody made it
    DType from;
    DType to;
    auto operator<=>(const RecastKey&) const = default;
  };
  const std::map<PingPongKey, PingPong>& ping_pong() const { return ping_pong_; }
  const std::map<RecastKey, Recast>& recast() const { return recast_; }
  std::uint64_t backward_ns() const { return backward_ns_; }
  std::size_t bytes() const;  // that all of it takes, about

 private:
  Row& row_of(SiteId site);
  void add_moment(SiteId site, const Cast& cast, Kind kind);

  std::uint64_t start_ns_;
  std::vector<Row> rows_;
  std::vector<Moment> moments_;
  std::uint64_t stride_ = 1;
  std::uint64_t seen_ = 0;
  std::uint64_t backward_ns_ = 0;  // of backward passes, casts included
  std::map<PingPongKey, PingPong> ping_pong_;
  std::map<RecastKey, Recast> recast_;
};

}  // namespace habana_mp::report
