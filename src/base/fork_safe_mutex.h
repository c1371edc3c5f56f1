// A mutex that a forked process never inherits from a thread that it does not have.
//
// A fork waits for all mutexes of this type, and both processes give them back. So the child finds
// what they guard whole. Two rules keep the fork from waiting for ever:
//   - A thread that holds one takes no other, so the order in which the fork takes them is free.
//   - Nothing waits for the GIL under one: a fork from Python holds it, and so may a thread that
//     waits for the mutex. tests/scope/test_locks.py watches this.
// Python has the same for its locks: habana_mp/_scope/fork_lock.py.
#pragma once

#include <mutex>

namespace habana_mp {

class ForkSafeMutex {
 public:
  // For objects that are made while the module loads and live until the process ends
  // (base/process_wide.h).
  ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

}  // namespace habana_mp
