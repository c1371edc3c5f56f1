// Which call of a recorded run a call of another run is, and how the two differ, by what is
// recorded of both. It runs nothing.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "probe/recording.h"
#include "report/values.h"

namespace habana_mp::probe {

inline constexpr std::size_t kMostCandidates = 64;  // that a call is compared with
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Why a call differs from the one that it is compared with.
enum class Difference : std::uint8_t {
  None,
  PassedOn,   // by what it was given: none is made here
  Precision,  // it ran in another dtype, or in another list for 8 bits
  Given,      // a weight, an input or a constant, which no call has made, is another one
  Result,     // from the same, in the same dtypes
  Unmatched,  // the first run has no such call
};
inline constexpr std::array<const char*, 6> kDifferenceNames = {"same",  "passed on", "precision",
                                                                "given", "result",    "only in b"};

// What a call is compared with.
enum class Partner : std::uint8_t {
  Call,   // the same op in the same module
  Whole,  // a call whose results have those of this one in them
  Parts,  // calls whose results make up those of this one
  Value,  // another op of the module, whose results are about the same
};
inline constexpr std::array<const char*, 4> kPartnerNames = {"call", "whole", "parts", "value"};

struct ComparedCall {
  Difference difference = Difference::Unmatched;
  Partner partner = Partner::Call;
  std::int64_t match = kNoCall;
  std::vector<std::int64_t> more{};  // of Partner::Parts: the calls behind `match`
  double made = 0;   // here, in parts of the size of the result; NaN where that is not known
  double total = 0;  // with what was passed on
  double rerun = std::numeric_limits<double>::quiet_NaN();  // `made`, where it ran once more
  bool seen = true;                                         // all its numbers could be read
  bool same_inputs = false;
  evidence::Flips flips{};
  report::Unmeasured why = report::Unmeasured::None;  // `made` is not known
  // Arguments that differ: the calls that made them, in this run and in the first.
  struct Argument {
    std::int64_t maker, first_maker;
  };
  std::vector<Argument> arguments{};
};

// About how far a cast moves the numbers that it is given, in parts of their size; 0 of any other
// call, and where they fit in the other dtype.
double rounding_of(const RecordedCall& call);

// How two runs are compared.
struct Terms {
  // The names that the second run has for the modules of the sites of the first; none: the same.
  std::vector<std::string> modules{};
  double tolerance = 0;  // a call that is as near, in parts of the size of its results, is the same
};

class Pairing {
 public:
  // std::invalid_argument where there is no first run.
  Pairing(std::shared_ptr<const Recording> first, Terms terms);

  const std::shared_ptr<const Recording>& first() const { return first_; }
  const Terms& terms() const { return terms_; }
  const std::string& module_of_first(const RecordedCall& call) const;

  // Of the next call of the second run.
  ComparedCall& pair(std::int64_t number, const RecordedCall& call, const report::Site& site);
  // Whether a call that it is inside of has a partner. Calls come before those inside of them.
  bool is_inside(std::int64_t number, const RecordedCall& call);
  // Once more, when others have got partners since.
  void classify(ComparedCall& compared, const RecordedCall& call) const;

  // Of a call of the second run, by its number; null of one that was not paired.
  ComparedCall* compared(std::int64_t number);
  // It, or a call that it is inside of.
  bool is_taken(std::int64_t candidate) const;
  bool has_partner(std::int64_t candidate) const {
    return taken_[static_cast<std::size_t>(candidate)];
  }
  void take(std::int64_t candidate) { taken_[static_cast<std::size_t>(candidate)] = true; }
  // Of programs that may differ: a call of other sizes is another one.
  void release(ComparedCall& compared);

 private:
  // The calls of the first run, by module and op.
  struct Candidates {
    std::vector<std::int64_t> calls;
    std::size_t next = 0;  // those before it are taken
  };

  std::int64_t match_of(const RecordedCall& call, const std::string& module);
  int likeness(const RecordedCall& call, const RecordedCall& candidate, bool in_module) const;
  bool may_be_root(std::string_view own, std::string_view other) const;
  bool same_makers(std::int64_t first, std::int64_t second, const ComparedCall** found) const;
  bool same_precision(const RecordedCall& first, const RecordedCall& second) const;
  bool same_argument(const RecordedArgument& first, const RecordedArgument& second) const;
  std::int64_t outermost_of_first(std::int64_t call) const;
  std::int64_t outermost_of_second(std::int64_t call) const;

  std::shared_ptr<const Recording> first_;
  Terms terms_;
  std::map<std::string, Candidates> candidates_;
  std::set<std::string, std::less<>> roots_, second_roots_;
  std::vector<bool> taken_;
  std::map<std::int64_t, ComparedCall> compared_;
  std::map<report::SiteId, report::Outcome> second_outcomes_;
  std::map<std::int64_t, std::int64_t> outer_;  // of calls of the second run inside of others
};

}  // namespace habana_mp::probe
