// The one instance of a type with a mutex in this process.
#pragma once

#include <pthread.h>

namespace habana_mp {

// Never destroyed: tensors may be used and freed while the process ends. A child process must not
// inherit a lock that a thread of its parent holds, so a fork waits for T::mutex.
template <class T>
T& process_wide() {
  static T* instance = [] {
    T* made = new T;
    pthread_atfork([] { process_wide<T>().mutex.lock(); }, [] { process_wide<T>().mutex.unlock(); },
                   [] { process_wide<T>().mutex.unlock(); });
    return made;
  }();
  return *instance;
}

}  // namespace habana_mp
