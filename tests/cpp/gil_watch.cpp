// For LD_PRELOAD: prints a line wherever a thread waits for the GIL while it holds a mutex that the
// core has locked (src/base/fork_safe_mutex.h). Where another thread holds the GIL and waits for
// the mutex, both wait for ever.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <functional>

namespace {

std::atomic<const char*> begin{nullptr};
std::atomic<const char*> end{nullptr};
// By this thread. An unlock may be the last jump of a function, which shows no caller.
thread_local std::array<pthread_mutex_t*, 8> held{};

bool is_of_core(const void* caller) {
  const auto* address = static_cast<const char*>(caller);
  return begin != nullptr && begin <= address && address < end;
}

void look(const char* what) {
  if (std::ranges::all_of(held, std::logical_not())) return;
  void* frames[32];
  std::fprintf(stderr, "%s under a mutex\n", what);
  backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

// Where the core lies in memory.
void watch_core(const char* first, const char* last) {
  end = last;
  begin = first;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const lock = next<int(pthread_mutex_t*)>("pthread_mutex_lock");
  const int result = lock(mutex);
  if (is_of_core(__builtin_return_address(0))) *std::ranges::find(held, nullptr) = mutex;
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static auto* const unlock = next<int(pthread_mutex_t*)>("pthread_mutex_unlock");
  if (auto* const found = std::ranges::find(held, mutex); found != held.end()) *found = nullptr;
  return unlock(mutex);
}

// How code in C++ comes by the GIL.
void PyEval_AcquireThread(void* state) {
  look("PyEval_AcquireThread");
  static auto* const acquire = next<void(void*)>("PyEval_AcquireThread");
  acquire(state);
}

void PyEval_RestoreThread(void* state) {
  look("PyEval_RestoreThread");
  static auto* const restore = next<void(void*)>("PyEval_RestoreThread");
  restore(state);
}

int PyGILState_Ensure() {
  look("PyGILState_Ensure");
  static auto* const ensure = next<int()>("PyGILState_Ensure");
  return ensure();
}
}
