#include "listen/child_casts.h"

#include <pthread.h>
#include <sys/mman.h>

#include <new>

namespace habana_mp::listen {
namespace {

using Count = std::atomic<std::uint64_t>;
static_assert(Count::is_always_lock_free);

// Null where there is no memory: then nothing is counted.
Count* shared_count() {
  void* memory =
      mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Count{0};
}

Count* of_children = shared_count();

[[maybe_unused]] const int notices_forks = pthread_atfork(nullptr, nullptr, [] {
  casts_for_parent = of_children;
  of_children = shared_count();
});

}  // namespace

std::uint64_t casts_of_children() { return of_children == nullptr ? 0 : of_children->load(); }

}  // namespace habana_mp::listen
