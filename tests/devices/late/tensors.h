// Tensors of the late device, and those of the CPU and of no device that stand for them.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <exception>

namespace late {

inline bool is_late(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// Of the current stream of the device. Its numbers are garbage.
at::Tensor empty_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                        c10::DeviceIndex device);

// A tensor of the CPU over the bytes of one of the device: for kernels. It does not hold them.
at::Tensor for_kernel(const at::Tensor& tensor);

// What is done inside it is seen by no mode, no region and no profiler of this thread.
struct Unseen {
  Unseen();
  at::ThreadLocalStateGuard guard;
  at::DisableRecordFunctionGuard unrecorded;
};

}  // namespace late
