// The streams of the late device: each is a thread with a queue, and waits for a random time before
// each task. What is queued runs in the order of its stream alone; nothing but an event, or the
// host, makes one stream wait for another.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace late {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
// Of each device. A new stream takes the next one in turn, as CUDA's pools do; 0 is the default.
constexpr c10::StreamId kStreams = 9;

using Task = std::function<void()>;

struct Capture;

// An event as it was recorded once.
struct Mark {
  bool done = false;
  double seconds = 0;
  std::weak_ptr<Capture> capture;  // that it was recorded in
  bool captured = false;
  c10::Stream stream;
};
using MarkPtr = std::shared_ptr<Mark>;

// What is recorded in place of being run.
struct Capture {
  std::uint64_t pool = 0;  // of the memory allocated in it
  c10::Stream origin;
  std::set<std::pair<c10::DeviceIndex, c10::StreamId>> streams;
  std::vector<Task> tasks{};
};

// What the host has asked of the device since they were set to 0.
struct Counts {
  std::atomic<std::int64_t> kernels = 0;  // ops, captured ones at each replay
  std::atomic<std::int64_t> copies = 0;   // between host and device
  std::atomic<std::int64_t> waits = 0;    // of the host for a stream, an event or a device
};
Counts& counts();

// The delays that follow: their seed, and how long they are, in microseconds. 0: none.
void set_delays(std::uint64_t seed, std::int64_t microseconds);
// A lazy stream does something only while somebody waits for it.
void set_lazy(c10::Stream stream, bool lazy);
// How long a stream has been delayed since then, in microseconds.
std::int64_t delayed(c10::Stream stream);

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::Stream default_stream(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(c10::Stream stream);
c10::Stream new_stream(c10::DeviceIndex device);

// Into the capture that the stream takes part in, or onto its queue.
void enqueue(c10::Stream stream, Task task);
// Onto its queue, whatever is captured, and without a delay.
void enqueue_now(c10::Stream stream, Task task);

MarkPtr record(c10::Stream stream);
void wait(c10::Stream stream, const MarkPtr& mark);
bool is_done(const MarkPtr& mark);     // c10::Error during a capture
bool has_passed(const MarkPtr& mark);  // the allocator asks, which no capture forbids

// The host waits. What a task has thrown is thrown here.
void synchronize(const MarkPtr& mark);
void synchronize(c10::Stream stream);
void synchronize_device(c10::DeviceIndex device);
bool is_idle(c10::Stream stream);

// The capture that a stream takes part in, or null; any that goes on.
std::shared_ptr<Capture> capture_of(c10::Stream stream);
bool any_capture();
void begin_capture(std::shared_ptr<Capture> capture);
void end_capture();

}  // namespace late
