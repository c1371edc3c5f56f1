#include "base/forked.h"

#include <pthread.h>

namespace habana_mp {

void notice_forks() {
  pthread_atfork(nullptr, nullptr, [] { forked_detail::forked = true; });
}

}  // namespace habana_mp
