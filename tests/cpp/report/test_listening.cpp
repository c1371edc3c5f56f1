// Listeners: whoever joins hears of every call, and what nobody hears costs nobody anything.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "report/call_queue.h"
#include "report/listening.h"
#include "report/report.h"

using namespace habana_mp;
using namespace habana_mp::report;
using habana_mp::listen::anyone_hears;
using habana_mp::listen::anyone_listens;

namespace {

// All that a listener of one's own takes: this class, and listen().
class CountsByOp final : public Listener {
 public:
  CountsByOp() : Listener(Hears::Calls) {}
  void ended(const Call& /*call*/, const Site& site) override { ++counts[site.op]; }
  std::map<std::string, int> counts;
};

class HearsDecisions final : public Listener {
 public:
  HearsDecisions() : Listener(Hears::Decisions) {}
  void decided(const Call& call) override { heard.push_back(call.decision.to); }
  std::vector<DType> heard;
};

// What the observer does when a call ends.
void end_call(SiteId id, const std::string& op) {
  const Call call{.site = id, .ns = 10};
  const Site site{.op = op};
  for (const auto& listener : listeners(Hears::Calls)) listener->ended(call, site);
}

}  // namespace

TEST_CASE("a third listener hears of the same calls as the report") {
  const auto report = std::make_shared<Report>(0);
  const auto counts = std::make_shared<CountsByOp>();
  CHECK_FALSE(anyone_listens());
  report::listen(report);
  report::listen(counts);
  CHECK(anyone_hears(Hears::Calls));
  CHECK_FALSE(anyone_hears(Hears::Decisions));
  for (const char* op : {"mm", "softmax", "mm"}) end_call(1, op);
  CHECK(unlisten(*counts));
  end_call(1, "mm");
  CHECK(counts->counts == std::map<std::string, int>{{"mm", 2}, {"softmax", 1}});
  CHECK(report->row(1).calls == 4);
  CHECK(anyone_listens());
  CHECK(unlisten(*report));
  CHECK_FALSE(anyone_listens());
  CHECK_FALSE(unlisten(*report));
}

TEST_CASE("decisions go to those who hear of them") {
  const auto listener = std::make_shared<HearsDecisions>();
  report::listen(listener);
  CHECK(anyone_hears(Hears::Decisions));
  CHECK_FALSE(anyone_hears(Hears::Calls));
  notify_decided({.decision = {DType::BFloat16, Cause::Lower, role_bit(Role::Input)}});
  CHECK(listener->heard == std::vector<DType>{DType::BFloat16});
  CHECK(unlisten(*listener));
  notify_decided({.decision = {DType::Float32, Cause::Fp32, role_bit(Role::Input)}});
  CHECK(listener->heard.size() == 1);
}

TEST_CASE("a queue keeps calls until they are taken, and so many at the most") {
  CallQueue queue;
  const Cast cast{DType::Float32, DType::BFloat16, false, 8, 0, 1};
  queue.ended({.ns = 10, .casts = {&cast, 1}}, {.op = "mm"});
  const auto taken = queue.take();
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].site.op == "mm");
  CHECK(taken[0].casts.size() == 1);
  CHECK(queue.take().empty());
  for (std::size_t i = 0; i < CallQueue::kMostCalls + 5; ++i) queue.ended({}, {.op = "mm"});
  CHECK(queue.lost() == 5);
  CHECK(queue.take().size() == CallQueue::kMostCalls);
}
