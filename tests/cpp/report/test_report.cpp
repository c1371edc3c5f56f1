// The report's counts, and the bounds of its memory.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "report/report.h"

using namespace habana_mp;
using namespace habana_mp::report;

namespace {

constexpr Cast kDown{DType::Float32, DType::BFloat16, false, 8, 100, 5};
constexpr Cast kCached{DType::Float32, DType::BFloat16, true, 8, 100, 1};

SiteKey key(std::uint32_t op, std::uint32_t module = 0) {
  return {.op = op, .module = module, .front_end = FrontEnd::Convert, .outcome = Outcome::Lower};
}

}  // namespace

TEST_CASE("a row counts calls, casts by dtypes, bytes of those that were made, and time") {
  Report report(0);
  const Cast casts[] = {
      kDown, kDown, kCached, {DType::BFloat16, DType::Float32, false, 16, 100, 7}};
  report.ended({.site = 3, .ns = 50, .input_dtypes = 8, .ran = 4, .casts = casts}, {});
  report.ended({.site = 3, .ns = 30, .input_dtypes = 4, .ran = 4}, {});
  Row row = report.row(3);
  CHECK(row.calls == 2);
  CHECK(row.ns == 80);
  CHECK(row.cast_ns == 18);
  CHECK(row.input_dtypes == 12);
  CHECK(row.casts.size() == 2);
  const CastCount& down = row.casts_of(DType::Float32, DType::BFloat16);
  CHECK(down.count == 3);
  CHECK(down.cached == 1);
  CHECK(down.bytes == 16);
  CHECK(row.casts_of(DType::BFloat16, DType::Float32).bytes == 16);
}

TEST_CASE("the backward of a cast is counted with it, the other way round") {
  Report report(0);
  report.ended({.site = 1, .casts = {&kDown, 1}}, {});
  report.cast_back(1, {DType::BFloat16, DType::Float32, false, 16, 100, 9});
  Row row = report.row(1);
  REQUIRE(row.casts.size() == 1);
  CHECK(row.casts[0].from == DType::Float32);
  CHECK(row.casts[0].count == 1);
  CHECK(row.casts[0].backward == 1);
  CHECK(row.casts[0].backward_bytes == 16);
}

TEST_CASE("a site is found again by its key, and by that alone") {
  Sites sites;
  CHECK(sites.find(key(1)) == kNone);
  const SiteId first = sites.add(key(1), {.op = "mm"});
  const SiteId other = sites.add(key(1, 2), {.op = "mm", .module = "Net: fc"});
  CHECK(first != other);
  CHECK(sites.find(key(1)) == first);
  CHECK(sites.add(key(1), {.op = "again"}) == first);
  CHECK(sites[first].op == "mm");
  CHECK(sites[other].module == "Net: fc");
}

TEST_CASE("sites beyond the limit are counted as one") {
  Sites sites;
  for (std::uint32_t i = 0; i < kMostSites + 100; ++i) sites.add(key(i), {.op = "mm"});
  CHECK(sites.size() == kMostSites + 1);
  CHECK(sites.find(key(kMostSites + 5000)) == kMostSites);
  CHECK(sites[kMostSites].op == "others");
  CHECK(sites[kMostSites - 1].op == "mm");
}

TEST_CASE("a path is its steps in order, and shares what it begins with") {
  Paths paths;
  const PathId begun = paths.begin(1, DType::Float32, DType::BFloat16);
  const PathId longer = paths.extend(begun, 2);
  CHECK(paths.sites(paths.extend(longer, 3)) == std::vector<SiteId>{1, 2, 3});
  CHECK(paths.extend(begun, 2) == longer);
  CHECK(paths.begin(1, DType::Float32, DType::BFloat16) == begun);
  CHECK(paths.begin(1, DType::BFloat16, DType::Float32) != begun);
  CHECK(paths[longer].from == DType::Float32);
  PathId path = begun;
  for (int i = 0; i < 100; ++i) path = paths.extend(path, 2);
  CHECK(paths.sites(path).size() == 8);
}

TEST_CASE("paths beyond the limit are not remembered") {
  Paths paths;
  for (std::uint32_t i = 1; i < 2 * kMostPaths; ++i)
    paths.begin(i, DType::Float32, DType::BFloat16);
  CHECK(paths.begin(5, DType::Float32, DType::BFloat16) == 5);
  CHECK(paths.begin(kMostPaths + 9, DType::Float32, DType::BFloat16) == kNone);
  CHECK(paths.extend(5, kMostPaths + 9) == 5);
}

TEST_CASE("casts in time are a sample that covers all of it evenly") {
  Report report(0);
  constexpr std::uint64_t kCasts = 5 * kMostMoments / 2;
  for (std::uint64_t i = 0; i < kCasts; ++i) {
    const Cast cast{DType::Float32, DType::BFloat16, false, 8, i, 1};
    report.ended({.site = 1, .casts = {&cast, 1}}, {});
  }
  CHECK(report.stride() == 4);
  REQUIRE(report.moments().size() == kCasts / 4);
  bool even = true;
  for (std::size_t i = 0; i < report.moments().size(); ++i) {
    even = even && report.moments()[i].start_ns == 4 * i;
  }
  CHECK(even);
}

TEST_CASE("a tensor cast n times was cast once of need") {
  Report report(0);
  for (const unsigned again : {2, 3, 4}) report.cast_repeated(7, 1, again, kDown, again);
  REQUIRE(report.recast().size() == 1);
  const auto& [key, seen] = *report.recast().begin();
  CHECK(key.maker == 7);
  CHECK(seen.times == 4);
  CHECK(seen.needed == 1);
  CHECK(seen.ns == 15);
  CHECK(seen.sites == std::vector<SiteId>{1, 2, 3, 4});
}

TEST_CASE("ten million events take no more memory than the first hundred thousand") {
  Report report(0);
  const auto add = [&](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t i = from; i < to; ++i) {
      const Cast cast{DType::Float32, DType::BFloat16, false, 8, i, 1};
      report.ended({.site = 1 + i % 1000, .ns = 10, .casts = {&cast, 1}}, {});
      if (i % 10 == 0) report.cast_undone(1 + i % 100, 1 + i % 1000, 5);
      if (i % 10 == 1) report.cast_repeated(1 + i % 1000, 1, 1 + i % 7, cast, 2);
    }
  };
  add(0, 100'000);
  const std::size_t before = report.bytes();
  add(100'000, 10'000'000);
  CHECK(report.bytes() == before);
  CHECK(before < 4'000'000);
  std::uint64_t calls = 0;
  for (SiteId site = 1; site < report.row_count(); ++site) calls += report.row(site).calls;
  CHECK(calls == 10'000'000);
}

TEST_CASE(
    "values add up: sums are added, ends are compared, and a report without values has none") {
  Report with(0, true), without(0);
  Values first, second;
  first.calls = 1;
  first.ran = {
      .squares = 2, .reference_squares = 8, .largest = 1, .reference_largest = 2, .lost = 0};
  first.range.smallest = 0.5;
  second.calls = 2;
  second.ran = {
      .squares = 1, .reference_squares = 4, .largest = 3, .reference_largest = 1, .lost = 2};
  second.range.smallest = 0.25;
  second.range.largest = 4;
  for (Report* report : {&with, &without}) {
    report->measured(2, first);
    report->measured(2, second);
  }
  const Values& values = with.values(2);
  CHECK(values.calls == 3);
  CHECK(values.ran.squares == 3);
  CHECK(values.ran.reference_squares == 12);
  CHECK(values.ran.largest == 3);
  CHECK(values.ran.reference_largest == 2);
  CHECK(values.ran.lost == 2);
  CHECK(values.range.smallest == 0.25);
  CHECK(values.range.largest == 4);
  CHECK(with.values(1).calls == 0);
  CHECK(with.values(99).calls == 0);
  CHECK(without.values(2).calls == 0);
}

TEST_CASE("the changes of a loss add up in a backward pass, and their squares over the passes") {
  Report report(0, true), without(0);
  for (const auto& [pass, change] : {std::pair{7, 3.0}, {7, -1.0}, {8, -2.0}}) {
    for (const SiteId site : {1U, 2U}) {
      report.changed(
          site,
          {.pass = pass, .loss = 5, .ran = change, .low = 2 * change, .rounding = change / 2});
      without.changed(
          site,
          {.pass = pass, .loss = 5, .ran = change, .low = 2 * change, .rounding = change / 2});
    }
  }
  for (const SiteId site : {1U, 2U}) {
    REQUIRE(report.changes(site).size() == 1);
    const Changes& changes = report.changes(site)[0].changes;
    CHECK(changes.count == 3);
    CHECK(changes.ran == 0);  // two passes that cancel
    CHECK(changes.squares_ran == 8);
    CHECK(changes.squares_low == 32);
    CHECK(changes.squares_rounding == 2);
  }
  REQUIRE(report.losses().size() == 1);
  CHECK(report.losses()[0].passes == 2);
  CHECK(report.changes(0).empty());
  CHECK(report.changes(99).empty());
  CHECK(without.losses().empty());
}

TEST_CASE("each loss has changes of its own") {
  Report report(0, true);
  for (const auto& [pass, loss, change] : {std::tuple{1, 5U, 3.0}, {2, 6U, -4.0}, {3, 5U, 1.0}})
    report.changed(1, {.pass = pass, .loss = loss, .ran = change, .low = change});
  REQUIRE(report.losses().size() == 2);
  CHECK(report.losses()[0].passes == 2);
  CHECK(report.losses()[1].passes == 1);
  CHECK(report.changes(1)[0].changes.squares_ran == 10);
  CHECK(report.changes(1)[1].changes.squares_ran == 16);
}

TEST_CASE(
    "passes keep their signs, and those beyond the first are added to them alike for all sites") {
  Report report(0, true);
  for (int pass = 0; pass < 164; ++pass) {
    report.changed(1, {.pass = pass, .loss = 5, .ran = 2, .low = 3});
    report.changed(2, {.pass = pass, .loss = 5, .ran = -4, .low = 3, .rounding = 1});
    report.changed(2, {.pass = pass, .loss = 5, .low = 6, .format = 0});
  }
  const Signed &one = report.changes(1)[0].passes, &other = report.changes(2)[0].passes;
  REQUIRE(one.ran.size() == Signed::kMostPasses);
  CHECK(one.rounding.empty());
  std::size_t turned = 0;
  for (std::size_t i = 0; i < one.ran.size(); ++i) {
    CHECK(other.ran[i] == -2 * one.ran[i]);
    CHECK(other.formats[0][i] == 2 * other.low[i]);
    CHECK(one.ran[i] == (i < 36 ? (one.ran[i] == 0 ? 0 : 4) : 2));
    turned += i < 36 && one.ran[i] == 0 ? 1 : 0;
  }
  CHECK(turned > 6);
  CHECK(turned < 30);
  CHECK(report.projected(1).ran.empty());
}

TEST_CASE("of a random sum of outputs the squares of the changes count, and nothing else") {
  Report report(0, true);
  Values loss;
  loss.calls = 1;
  report.measured(1, loss);
  report.changed(1, {.pass = 1, .loss = 5, .ran = 5, .low = 5});
  for (const double change : {3.0, -4.0}) {
    report.begin_projection();
    report.changed(
        1, {.pass = 2, .loss = 5, .ran = change, .low = 2 * change, .rounding = 3 * change});
    report.cast_back(1, {DType::Float32, DType::BFloat16, false, 8, 1, 1});
    report.backward_ended(7, false);
    report.end_projection();
  }
  const Values& values = report.values(1);
  CHECK(report.changes(1)[0].changes.ran == 5);
  CHECK(report.losses()[0].passes == 1);
  CHECK(values.projections == 2);
  CHECK(values.projected_ran == 25);
  CHECK(values.projected_low == 100);
  CHECK(values.projected_rounding == 225);
  CHECK(report.projected(1).ran == Signed::Passes{3, -4});
  CHECK(report.changes(1)[0].passes.ran == Signed::Passes{5});
  CHECK(report.backward_ns() == 0);
  CHECK((report.row_count() < 2 || report.row(1).casts.empty()));
}

TEST_CASE("of what several sites read, the changes of each pair are multiplied in each pass") {
  Report report(0, true), without(0);
  const auto read = [&](Report& of, int pass, SiteId reader, double change) {
    of.read(1, reader, {.pass = pass, .loss = 5, .rounding = change});
  };
  for (Report* of : {&report, &without}) {
    read(*of, 7, 2, 3), read(*of, 7, 3, -2), read(*of, 7, 2, 1), read(*of, 7, kNone, 2);
    read(*of, 8, 2, 1), read(*of, 8, 3, 1), read(*of, 8, kNone, 2);
  }
  REQUIRE(report.reads().size() == 1);
  const auto& products = report.reads().at({1, 5}).products;
  using Pair = std::pair<SiteId, SiteId>;
  CHECK(products.at(Pair{2, 2}) == 4 * 4 + 1);
  CHECK(products.at(Pair{3, 3}) == 4 + 1);
  CHECK(products.at(Pair{2, 3}) == 4 * -2 + 1);
  CHECK(products.at(Pair{kNone, 2}) == 4 * 2 + 2);
  CHECK(products.at(Pair{kNone, kNone}) == 4 + 4);
  CHECK(without.reads().empty());
}

TEST_CASE(
    "what a pass from margins of a choice changes is of the choice, and counts nothing else") {
  Report report(0, true);
  report.begin_choice(7);
  report.changed(1, {.pass = 2, .loss = 5, .ran = 3});
  report.read(1, 2, {.pass = 2, .loss = 5, .rounding = 3});
  Values measured;
  measured.calls = 1;
  report.measured(1, measured);
  report.end_choice();
  report.chose(4, 7, {.margins = {{-8, 2}}, .choices = 2});
  report.changed(1, {.pass = 3, .loss = 5, .ran = 4});
  REQUIRE(report.losses().size() == 2);
  CHECK(report.losses()[0].line == 7);
  CHECK(report.losses()[0].chose == 4);
  CHECK(report.losses()[0].choice.margins.at(-8) == 2);
  CHECK(report.losses()[1].chose == kNone);
  CHECK(report.changes(1)[1].changes.ran == 4);
  CHECK(report.reads().contains({1, 7}));
  CHECK(report.values(1).calls == 0);
}

TEST_CASE("each random sum of outputs is a pass of its own for those that read") {
  Report report(0, true);
  for (const double change : {3.0, -4.0}) {
    report.begin_projection();
    report.read(1, 2, {.pass = 2, .loss = 5, .rounding = change});
    report.end_projection();
  }
  CHECK(report.reads().at({1, kOutputs}).products.begin()->second == 25);
}
