// Where calls are counted together: an op, in a module, under a rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "listen/event.h"
#include "policy/policy.h"

namespace habana_mp::report {

using SiteId = std::uint32_t;
using PathId = std::uint32_t;
inline constexpr std::uint32_t kNone = 0;           // no site, no path
inline constexpr std::uint32_t kRoot = UINT32_MAX;  // no site: where a backward pass begins
inline constexpr std::size_t kMostSites = 1 << 16;
inline constexpr std::size_t kMostPaths = 1 << 16;

using listen::FrontEnd;
inline constexpr std::array<const char*, 3> kFrontEndNames = {"", "convert", "autocast"};

// What became of the calls of a site. The first ten are those of Cause; of the others no rule was
// asked.
enum class Outcome : std::uint8_t {
  LeftAlone,
  Lower,
  Fp32,
  Promote,
  InPlace,
  FirstInput,
  RestFp32,
  NoLowKernel,
  WeightInt8,
  Int8,
  Off,       // casts were off
  Unlisted,  // no rule, though a policy was in force
  Missed,    // there was a rule, and the call went past it
  Outside,   // no policy was in force
  Backward,  // in a backward pass
};
inline constexpr std::array<const char*, 15> kOutcomeNames = {
    "left alone",  "lower", "fp32", "promote",  "in place", "first input", "rest fp32", "no kernel",
    "weight_int8", "int8",  "off",  "unlisted", "missed",   "outside",     "backward"};

constexpr Outcome outcome_of(Cause cause) { return static_cast<Outcome>(cause); }
static_assert(outcome_of(Cause::None) == Outcome::LeftAlone &&
              outcome_of(Cause::NoLowKernel) == Outcome::NoLowKernel &&
              outcome_of(Cause::Int8) == Outcome::Int8);

constexpr bool is_int8(Outcome outcome) {
  return outcome == Outcome::WeightInt8 || outcome == Outcome::Int8;
}

// Equal sites have one id, from 1 on, while a report is open.
struct Site {
  std::string op{};
  std::string module{};
  std::shared_ptr<const Policy> policy{};  // null outside of any
  std::string rule{};
  std::string source{};                 // of the first call
  FrontEnd front_end = FrontEnd::None;  // that decided
  FrontEnd in_force = FrontEnd::None;   // that the policy is of
  Outcome outcome = Outcome::Unlisted;
  std::uint64_t place = 0;  // of the key
  Cause instead_of = Cause::None;
};

// The same in numbers (base/name_numbers.h), to be looked up at every call.
struct SiteKey {
  std::uint32_t op = 0;
  std::uint32_t module = 0;
  std::uint64_t decider_id = 0;  // which rule, of which conversion or region
  std::uint64_t place = 0;       // which call in the code, where errors are measured
  FrontEnd front_end = FrontEnd::None;
  Outcome outcome = Outcome::Unlisted;

  friend bool operator==(const SiteKey&, const SiteKey&) = default;
};

constexpr std::uint64_t mixed(std::uint64_t value) {
  return (value ^ (value >> 29)) * 0x9E3779B97F4A7C15U;
}

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

}  // namespace habana_mp::report
