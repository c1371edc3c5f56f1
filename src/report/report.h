// The report: which op ran where, in which precision, and what its casts cost. It counts what the
// observer (watch/observer.h) calls it with; it must not know Python, torch or how a decision is
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
#include <string>
#include <utility>
#include <vector>

#include "policy/dtype.h"
#include "report/listening.h"

namespace habana_mp::report {

inline constexpr std::size_t kMostMoments = 1 << 16;

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
  unsigned input_dtypes = 0;  // dtypes, a bit each
  unsigned ran = 0;
  std::array<std::uint64_t, kDTypeCount> made{};  // bytes, by dtype
  std::vector<CastCount> casts;

  CastCount& casts_of(DType from, DType to);
};

enum class Kind : std::uint8_t { Cast, Cached, Backward };
inline constexpr std::array<const char*, 3> kKindNames = {"cast", "cached", "backward"};

struct Moment {
  std::uint64_t start_ns;
  std::uint32_t ns;
  SiteId site;
  DType from;
  DType to;
  Kind kind;
};

// Tensors of one kind, which the calls of one site made and those of another were given.
struct Edge {
  std::uint64_t count = 0;
  std::uint64_t numbers = 0;
  std::uint64_t first = 0;  // of them, first arguments: what a call may take its dtype from
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

// The changes that the rounding of what one site makes brings by those that read it: of each pair
// of readers the sum of products over backward passes, as parts of one tensor cancel or add up.
// kNone: of all of it together. kRoot: where a backward pass begins, which rounds nothing.
struct Reads {
  std::map<std::pair<SiteId, SiteId>, double> products;
  std::int64_t pass = 0;
  std::vector<std::pair<SiteId, double>> now;  // in that pass

  void add(std::int64_t of_pass, SiteId reader, double change);
};

class Report final : public Listener {
 public:
  explicit Report(std::uint64_t start_ns, bool has_values = false, std::uint64_t step = 0)
      : Listener(Hears::Calls, step), has_values_(has_values), start_ns_(start_ns) {}

  void ended(const Call& call, const Site& site) override;
  void given(const Given& tensor, std::uint64_t numbers, bool first) override;
  void cast_back(SiteId site, const Cast& cast) override;
  void measured(SiteId site, const Values& values) override;
  void changed(SiteId site, const Change& change) override;
  void read(SiteId maker, SiteId reader, const Change& change) override;
  void backward_ended(std::uint64_t ns, bool raised) override {
    backward_ns_ += is_aside() ? 0 : ns;
    backward_raised_ += raised;
  }
  void compiled_ran(const std::string& graph) override;
  void cast_undone(PathId path, SiteId site, std::uint64_t ns) override;
  void cast_repeated(SiteId maker, SiteId first, SiteId site, const Cast& cast,
                     unsigned times) override;

  std::size_t row_count() const { return rows_.size(); }
  const Row& row(SiteId site) const { return rows_[site]; }
  // Whether calls are measured for it.
  bool has_values() const { return has_values_; }
  const Values& values(SiteId site) const;
  // Of whose gradients some have come to rows.
  struct Loss {
    std::uint32_t line;  // by number_of()
    std::uint64_t passes = 0;
    int last_pass = -1;
    SiteId chose = kNone;  // a choice: its changes are those of its margins
    Choice choice{};
  };
  const std::vector<Loss>& losses() const { return losses_; }
  struct LossChanges {
    std::uint32_t line;
    Changes changes{};
    Change last{.pass = -1};  // the sums of the last pass: squares grow while their parts come
    std::array<PassSums, kFormats.size()> formats{};
    Signed passes{};
  };
  const std::vector<LossChanges>& changes(SiteId site) const;
  const Signed& projected(SiteId site) const;  // the changes of each random sum of the outputs
  // Between the two the changes of a loss are those of one random sum of the outputs, and nothing
  // else counts.
  void begin_projection() override;
  void end_projection() override;
  void begin_choice(std::uint32_t choice) override { choosing_ = choice; }
  void end_choice() override { choosing_ = 0; }
  void chose(SiteId site, std::uint32_t choice, const Choice& made) override;
  void decided_by_choices(std::uint32_t loss, double squares, std::uint64_t otherwise) override;
  const std::map<std::uint32_t, ChoicesWorth>& decided_by_choices() const { return decided_; }
  struct ReadsKey {
    SiteId maker;
    std::uint32_t loss;  // a line, or kOutputs
    auto operator<=>(const ReadsKey&) const = default;
  };
  const std::map<ReadsKey, Reads>& reads() const { return reads_; }
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
  const std::map<Given, Edge>& edges() const { return edges_; }  // where values are measured
  const std::map<PingPongKey, PingPong>& ping_pong() const { return ping_pong_; }
  const std::map<RecastKey, Recast>& recast() const { return recast_; }
  // How often each graph of torch.compile ran, by its number there.
  const std::map<std::string, std::uint64_t>& compiled() const { return compiled_; }
  std::uint64_t optimizer_ns() const { return optimizer_ns_; }  // of ops in steps of optimizers
  std::uint64_t backward_ns() const { return backward_ns_; }
  std::uint64_t backward_raised() const { return backward_raised_; }
  std::size_t bytes() const;  // that all of it takes, about

 private:
  Row& row_of(SiteId site);
  bool is_aside() const { return projecting_ || choosing_ != 0; }  // a pass of ours
  void add_moment(SiteId site, const Cast& cast, Kind kind);

  bool has_values_;
  std::uint64_t start_ns_;
  std::vector<Row> rows_;
  std::vector<Values> values_;  // of the rows; empty unless it has them
  struct Projection {
    Changes changes{};
    std::array<double, kFormats.size()> formats{};
  };
  std::vector<Projection> projection_;  // of the rows, in the one that runs
  std::vector<Signed> projected_;       // of the rows
  std::vector<Loss> losses_;
  std::vector<std::vector<LossChanges>> changes_;  // of the rows
  std::map<std::uint32_t, ChoicesWorth> decided_;  // by the line of a loss, or kOutputs
  bool projecting_ = false;
  std::uint32_t choosing_ = 0;
  std::int64_t projections_ = 0;
  std::map<ReadsKey, Reads> reads_;
  std::vector<Moment> moments_;
  std::uint64_t stride_ = 1;
  std::uint64_t seen_ = 0;
  std::uint64_t backward_raised_ = 0;  // nodes
  std::uint64_t backward_ns_ = 0;      // of backward passes, casts included
  std::uint64_t optimizer_ns_ = 0;
  std::map<Given, Edge> edges_;
  std::map<PingPongKey, PingPong> ping_pong_;
  std::map<RecastKey, Recast> recast_;
  std::map<std::string, std::uint64_t> compiled_;
};

}  // namespace habana_mp::report
