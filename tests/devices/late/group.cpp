// A process group of the late device. Each collective is queued on a stream of its own, as NCCL's
// are, and done there by a group of the host over the same bytes.
#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "memory.h"
#include "streams.h"
#include "tensors.h"

namespace late {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct QueuedWork final : c10d::Work {
  QueuedWork(c10::Stream stream, const Tensors& results)
      : stream_(stream), mark_(record(stream)), results_(results) {
    const c10::StreamGuard guard(stream);
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(),
                                                       std::vector{stream.device()});
    future_->markCompleted(results);
  }
  bool isCompleted() override { return is_done(mark_); }
  bool isSuccess() const override { return true; }
  Tensors result() override { return results_; }
  void synchronize() override { late::wait(current_stream(stream_.device_index()), mark_); }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::Stream stream_;
  MarkPtr mark_;
  Tensors results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

Tensors for_kernels(const Tensors& tensors) {
  Tensors made;
  for (const at::Tensor& each : tensors) made.push_back(for_kernel(each));
  return made;
}

struct Group final : c10d::Backend {
  explicit Group(c10::intrusive_ptr<c10d::Backend> host)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)) {}
  const std::string getBackendName() const override { return "late"; }
  bool supportsCoalescing() const override { return false; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return queue(tensors, tensors, [=, host = host_, given = for_kernels(tensors)] {
      Tensors own = given;
      host->broadcast(own, options)->wait();
    });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return queue(tensors, tensors, [=, host = host_, given = for_kernels(tensors)] {
      Tensors own = given;
      host->allreduce(own, options)->wait();
    });
  }
  WorkPtr allgather(std::vector<Tensors>& to, Tensors& from,
                    const c10d::AllgatherOptions& options) override {
    Tensors used = from;
    used.insert(used.end(), to[0].begin(), to[0].end());
    return queue(used, to[0], [=, host = host_, in = for_kernels(from), out = for_kernels(to[0])] {
      Tensors own = in;
      std::vector<Tensors> results{out};
      host->allgather(results, own, options)->wait();
    });
  }
  WorkPtr _allgather_base(at::Tensor& to, at::Tensor& from,
                          const c10d::AllgatherOptions& options) override {
    return queue({to, from}, {to}, [=, host = host_, in = for_kernel(from), out = for_kernel(to)] {
      at::Tensor own = in, result = out;
      host->_allgather_base(result, own, options)->wait();
    });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& to, Tensors& from,
                                          const c10d::AllgatherOptions& options) override {
    Tensors used = from;
    used.insert(used.end(), to.begin(), to.end());
    return queue(used, to, [=, host = host_, in = for_kernels(from), out = for_kernels(to)] {
      Tensors own = in, results = out;
      host->allgather_into_tensor_coalesced(results, own, options)->wait();
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& to, at::Tensor& from,
                               const c10d::ReduceScatterOptions& options) override {
    return queue({to, from}, {to}, [=, host = host_, in = for_kernel(from), out = for_kernel(to)] {
      at::Tensor own = in, result = out;
      host->_reduce_scatter_base(result, own, options)->wait();
    });
  }

 private:
  template <typename Call>
  WorkPtr queue(const Tensors& used, const Tensors& results, Call call) {
    const c10::DeviceIndex device = used[0].device().index();
    late::wait(streams_[device], record(current_stream(device)));
    for (const at::Tensor& each : used)
      memory().recordStream(each.storage().data_ptr(), streams_[device]);
    enqueue(streams_[device], std::move(call));
    return c10::make_intrusive<QueuedWork>(streams_[device], results);
  }

  c10::intrusive_ptr<c10d::Backend> host_;
  std::array<c10::Stream, kDevices> streams_{new_stream(0), new_stream(1)};
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> process_group(c10::intrusive_ptr<c10d::Backend> host) {
  return c10::make_intrusive<Group>(std::move(host));
}

}  // namespace late

PYBIND11_MODULE(late, module) { module.def("process_group", &late::process_group); }
