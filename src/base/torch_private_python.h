// The private names of base/torch_private.h that need pybind11 or the headers of torch that include
// it. They are apart, because pybind11 makes every file that includes it take four seconds more.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <cstdint>
#include <string_view>
#include <typeinfo>

namespace habana_mp::torch_private {

// Whether a graph is being captured on the stream, which is cast for anew each time it is replayed.
template <typename Stream>
bool is_capturing(const Stream& stream) {
  if constexpr (requires { stream.is_capturing(); }) {
    if (stream.device_type() == c10::DeviceType::CUDA) return stream.is_capturing();
    // torch 2.12 raises for devices that capture nothing: each is asked once.
    static std::atomic<std::uint64_t> capture_nothing{0};
    const std::uint64_t device = std::uint64_t{1} << static_cast<int>(stream.device_type());
    if (capture_nothing.load(std::memory_order_relaxed) & device) return false;
    try {
      return stream.is_capturing();
    } catch (const c10::Error&) {
      capture_nothing.fetch_or(device, std::memory_order_relaxed);
      return false;
    }
  } else {  // torch 2.11 tells Python only
    if (stream.device_type() != c10::DeviceType::CUDA) return false;
    const pybind11::gil_scoped_acquire gil;
    return pybind11::module_::import("torch.cuda")
        .attr("is_current_stream_capturing")()
        .template cast<bool>();
  }
}

// The tensor that one of AOTAutograd stands for: its FunctionalTensor, a Python class, holds a
// functional tensor of C++, and that holds the fake one. Every other tensor is returned as it is.
// With the GIL.
inline at::Tensor behind_functional(const at::Tensor& tensor) {
  using namespace at::functionalization::impl;
  if (isFunctionalTensor(tensor)) return from_functional_tensor(tensor);
  const auto object = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor));
  if (std::string_view(Py_TYPE(object.ptr())->tp_name) != "FunctionalTensor") return tensor;
  return from_functional_tensor(THPVariable_Unpack(object.attr("elem").ptr()));
}

// Whether a fake tensor stands for a torch.nn.Parameter, which it has no type of. With the GIL.
inline bool stands_for_parameter(const at::Tensor& fake) {
  const auto object = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(fake));
  const pybind11::object mark = pybind11::getattr(object, "_is_param", pybind11::none());
  return mark.is(pybind11::bool_(true));
}

// Whether inductor, where it compiles here, takes weights for constants of its own: it freezes
// them, which is to cast and to pack them now, or it compiles ahead of time.
inline bool owns_weights() {
  const pybind11::gil_scoped_acquire gil;
  const pybind11::dict modules = pybind11::module_::import("sys").attr("modules");
  const auto find = [&](const char* module, const auto&... path) {
    if (!modules.contains(module)) return pybind11::object(pybind11::none());
    pybind11::object found = modules[module];
    ((found = pybind11::getattr(found, path, pybind11::none())), ...);
    return found;
  };
  const pybind11::bool_ yes(true);
  if (find("torch._inductor.virtualized", "V", "aot_compilation").is(yes)) return true;
  if (!find("torch._inductor.config", "freezing").is(yes)) return false;
  // It freezes what Dynamo has left in the module; that asks for more than this setting.
  const pybind11::object trace = find("torch._guards", "TracingContext", "try_get");
  if (trace.is_none()) return true;
  const pybind11::object left = pybind11::getattr(trace(), "params_flat", pybind11::none());
  return PyObject_IsTrue(left.ptr()) == 1;
}

// Gives the nodes of a C++ class a Python type of their own.
inline void register_node_type(const std::type_info& node, PyTypeObject& type, const char* name) {
  torch::autograd::_initFunctionPyTypeObject(type, name, nullptr, nullptr);
  torch::autograd::registerCppFunction(node, &type);
}

}  // namespace habana_mp::torch_private
