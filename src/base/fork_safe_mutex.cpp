#include "base/fork_safe_mutex.h"

#include <pthread.h>

#include <vector>

namespace habana_mp {
namespace {

using Mutexes = std::vector<ForkSafeMutex*>;

Mutexes& all();

void take_all() {
  for (ForkSafeMutex* mutex : all()) mutex->lock();
}

void give_all_back() {
  for (ForkSafeMutex* mutex : all()) mutex->unlock();
}

Mutexes& all() {
  static Mutexes* made = nullptr;
  if (made == nullptr) {
    made = new Mutexes;
    pthread_atfork(take_all, give_all_back, give_all_back);
  }
  return *made;
}

}  // namespace

ForkSafeMutex::ForkSafeMutex() { all().push_back(this); }

}  // namespace habana_mp
