#include "report/listening.h"

#include <utility>

#include "base/process_wide.h"

namespace habana_mp::report {
namespace {

// Never destroyed: at exit a listener may belong to an interpreter that is gone.
Listeners& of(Hears what) {
  auto& [decisions, calls] = process_wide<std::pair<Listeners, Listeners>>();
  return what == Hears::Decisions ? decisions : calls;
}

void update(Hears what) { listen::set_heard(what, !of(what).empty()); }

}  // namespace

const Listeners& listeners(Hears what) { return of(what); }

void listen(std::shared_ptr<Listener> listener) {
  const Hears what = listener->what();
  of(what).push_back(std::move(listener));
  update(what);
}

bool unlisten(const Listener& listener) {
  const Hears what = listener.what();
  const auto is_it = [&](const std::shared_ptr<Listener>& one) { return one.get() == &listener; };
  const bool found = std::erase_if(of(what), is_it) > 0;
  update(what);
  return found;
}

void notify_decided(const Call& call) {
  // A share of each: what a listener writes to may run code that opens or closes one.
  const Listeners all = of(Hears::Decisions);
  for (const auto& listener : all) listener->decided(call);
}

}  // namespace habana_mp::report
