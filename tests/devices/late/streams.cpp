#include "streams.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/ParallelGuard.h>
#include <torch/csrc/python_headers.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

namespace late {
namespace {

using Clock = std::chrono::steady_clock;

// Of all queues, marks and captures. Never destroyed: threads wait for it when the process ends.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::string error;  // the first that a task has thrown
  std::shared_ptr<Capture> capture;
  std::uint64_t seed = 0;
  std::int64_t delay = 200;
};
Shared& shared() {
  static Shared& it = *new Shared;
  return it;
}

class Queue {
 public:
  explicit Queue(c10::Stream stream) : stream_(stream) { reseed(); }

  // With the mutex, as all of these.
  void reseed() {
    const auto number =
        static_cast<std::uint64_t>(stream_.device_index() * kStreams + stream_.id());
    random_.seed(shared().seed * 1000 + number);
    delayed_ = {};
  }
  void push(Task task, bool late = true) {
    if (!started_) std::thread([this] { run(); }).detach();
    started_ = true;
    tasks_.push_back({std::move(task), late});
    more_.notify_one();
  }
  std::int64_t delayed() const { return delayed_.count(); }
  void set_lazy(bool lazy) {
    lazy_ = lazy;
    more_.notify_one();
  }
  void waited_for(int more) {
    waiting_ += more;
    more_.notify_one();
  }
  bool idle() const { return tasks_.empty() && !running_; }

 private:
  // Most tasks begin at once, some much later: then one stream falls behind another by many tasks.
  std::chrono::microseconds delay() {
    const std::int64_t most = shared().delay;
    if (most == 0) return {};
    const bool long_one = random_() % 8 == 0;
    return std::chrono::microseconds(
        random_() % static_cast<std::uint64_t>(long_one ? 8 * most : most / 4 + 1));
  }

  void run() {
    // Tasks call kernels of the CPU: without autograd, unseen by profilers, on this thread alone.
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::DisableRecordFunctionGuard unseen;
    const c10::ParallelGuard alone(true);
    std::unique_lock lock(shared().mutex);
    while (true) {
      more_.wait(lock, [&] { return !tasks_.empty() && (!lazy_ || waiting_ > 0); });
      auto [task, late] = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      const auto pause = late ? delay() : std::chrono::microseconds();
      delayed_ += pause;
      lock.unlock();
      if (pause.count() > 0) std::this_thread::sleep_for(pause);
      std::string error;
      try {
        task();
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
      task = nullptr;  // what it held
      lock.lock();
      running_ = false;
      if (!error.empty() && shared().error.empty()) shared().error = error;
      if (tasks_.empty()) shared().changed.notify_all();
    }
  }

  c10::Stream stream_;
  std::condition_variable more_;
  std::deque<std::pair<Task, bool>> tasks_;
  std::mt19937_64 random_;
  std::chrono::microseconds delayed_{};
  bool running_ = false, started_ = false, lazy_ = false;
  int waiting_ = 0;
};

c10::Stream stream_at(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

auto& queues() {
  static auto& all = *[] {
    auto* made = new std::array<std::vector<std::unique_ptr<Queue>>, kDevices>;
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
      for (c10::StreamId id = 0; id < kStreams; ++id) {
        (*made)[device].push_back(std::make_unique<Queue>(stream_at(device, id)));
      }
    }
    return made;
  }();
  return all;
}
Queue& queue(c10::Stream stream) { return *queues()[stream.device_index()][stream.id()]; }

thread_local c10::DeviceIndex device_here = 0;
thread_local std::array<c10::StreamId, kDevices> streams_here{};

std::pair<c10::DeviceIndex, c10::StreamId> key(c10::Stream stream) {
  return {stream.device_index(), stream.id()};
}

std::shared_ptr<Capture> capture_of_locked(c10::Stream stream) {
  const auto& capture = shared().capture;
  return capture && capture->streams.contains(key(stream)) ? capture : nullptr;
}

void forbid_in_capture(const char* what) {
  TORCH_CHECK(!shared().capture, "late device: ", what, " while a graph is being captured");
}

// While the host waits: a task may be a kernel in Python.
class WithoutGil {
 public:
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_ = PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
};

// With the mutex, while the thread waits for these.
class WaitedFor {
 public:
  explicit WaitedFor(std::vector<Queue*> queues) : queues_(std::move(queues)) { all(1); }
  ~WaitedFor() { all(-1); }

 private:
  void all(int more) {
    for (Queue* each : queues_) each->waited_for(more);
  }
  std::vector<Queue*> queues_;
};

void wait_until(std::unique_lock<std::mutex>& lock, std::vector<Queue*> queues,
                const std::function<bool()>& condition) {
  ++counts().waits;
  {
    const WaitedFor here(std::move(queues));
    shared().changed.wait(lock, condition);
  }
  if (shared().error.empty()) return;
  const std::string error = std::exchange(shared().error, {});
  lock.unlock();
  TORCH_CHECK(false, "late device: a task has failed: ", error);
}

}  // namespace

Counts& counts() {
  static Counts& it = *new Counts;
  return it;
}

void set_delays(std::uint64_t seed, std::int64_t microseconds) {
  const std::lock_guard lock(shared().mutex);
  shared().seed = seed;
  shared().delay = microseconds;
  for (auto& of_device : queues()) {
    for (auto& each : of_device) each->reseed();
  }
}

void set_lazy(c10::Stream stream, bool lazy) {
  const std::lock_guard lock(shared().mutex);
  queue(stream).set_lazy(lazy);
}

std::int64_t delayed(c10::Stream stream) {
  const std::lock_guard lock(shared().mutex);
  return queue(stream).delayed();
}

c10::DeviceIndex current_device() { return device_here; }
void set_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "late device: there is no device ",
              static_cast<int>(device));
  device_here = device;
}
c10::Stream default_stream(c10::DeviceIndex device) { return stream_at(device, 0); }
c10::Stream current_stream(c10::DeviceIndex device) {
  if (device < 0) device = device_here;
  return stream_at(device, streams_here[device]);
}
void set_current_stream(c10::Stream stream) { streams_here[stream.device_index()] = stream.id(); }
c10::Stream new_stream(c10::DeviceIndex device) {
  static std::array<std::atomic<std::uint64_t>, kDevices> made{};
  if (device < 0) device = device_here;
  return stream_at(device, 1 + static_cast<c10::StreamId>(made[device]++ % (kStreams - 1)));
}

void enqueue(c10::Stream stream, Task task) {
  const std::lock_guard lock(shared().mutex);
  if (const auto capture = capture_of_locked(stream)) {
    capture->tasks.push_back(std::move(task));
  } else {
    queue(stream).push(std::move(task));
  }
}

void enqueue_now(c10::Stream stream, Task task) {
  const std::lock_guard lock(shared().mutex);
  queue(stream).push(std::move(task), /*late=*/false);
}

MarkPtr record(c10::Stream stream) {
  const auto mark = std::make_shared<Mark>(Mark{.stream = stream});
  const std::lock_guard lock(shared().mutex);
  if (const auto capture = capture_of_locked(stream)) {
    mark->capture = capture;
    mark->captured = true;
    return mark;
  }
  queue(stream).push([mark] {
    const std::lock_guard at_its_turn(shared().mutex);
    mark->done = true;
    mark->seconds = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    shared().changed.notify_all();
  });
  return mark;
}

void wait(c10::Stream stream, const MarkPtr& mark) {
  const std::lock_guard lock(shared().mutex);
  if (mark->captured) {
    const auto capture = mark->capture.lock();
    TORCH_CHECK(capture && capture == shared().capture,
                "late device: a stream waits for an event of a capture that has ended");
    capture->streams.insert(key(stream));
    return;
  }
  if (capture_of_locked(stream)) {
    TORCH_CHECK(mark->done, "late device: a captured stream waits for work that is not captured");
    return;
  }
  queue(stream).push([mark] {
    std::unique_lock at_its_turn(shared().mutex);
    const WaitedFor here({&queue(mark->stream)});
    shared().changed.wait(at_its_turn, [&] { return mark->done; });
  });
}

bool has_passed(const MarkPtr& mark) {
  const std::lock_guard lock(shared().mutex);
  return mark->done;
}

bool is_done(const MarkPtr& mark) {
  const std::lock_guard lock(shared().mutex);
  forbid_in_capture("an event is queried");
  return mark->done;
}

void synchronize(const MarkPtr& mark) {
  const WithoutGil no_gil;
  std::unique_lock lock(shared().mutex);
  forbid_in_capture("the host waits for an event");
  wait_until(lock, {&queue(mark->stream)}, [&] { return mark->done; });
}

void synchronize(c10::Stream stream) {
  const WithoutGil no_gil;
  std::unique_lock lock(shared().mutex);
  forbid_in_capture("the host waits for a stream");
  wait_until(lock, {&queue(stream)}, [&] { return queue(stream).idle(); });
}

void synchronize_device(c10::DeviceIndex device) {
  const WithoutGil no_gil;
  std::unique_lock lock(shared().mutex);
  forbid_in_capture("the host waits for the device");
  std::vector<Queue*> all;
  for (const auto& each : queues()[device]) all.push_back(each.get());
  wait_until(lock, all, [&] { return std::ranges::all_of(all, &Queue::idle); });
}

bool is_idle(c10::Stream stream) {
  const std::lock_guard lock(shared().mutex);
  forbid_in_capture("a stream is queried");
  return queue(stream).idle();
}

std::shared_ptr<Capture> capture_of(c10::Stream stream) {
  const std::lock_guard lock(shared().mutex);
  return capture_of_locked(stream);
}

bool any_capture() {
  const std::lock_guard lock(shared().mutex);
  return shared().capture != nullptr;
}

void begin_capture(std::shared_ptr<Capture> capture) {
  const std::lock_guard lock(shared().mutex);
  forbid_in_capture("another capture begins");
  TORCH_CHECK(capture->origin.id() != 0, "late device: the default stream cannot be captured");
  capture->streams.insert(key(capture->origin));
  shared().capture = std::move(capture);
}

void end_capture() {
  const std::lock_guard lock(shared().mutex);
  TORCH_CHECK(shared().capture, "late device: nothing is being captured");
  shared().capture = nullptr;
}

}  // namespace late
