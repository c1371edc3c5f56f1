// The names of libtorch and of CPython that are private, or that may differ in another version,
// each with what it is for. Nothing else in src/ writes them; tests/project/test_torch_private.py
// looks that it stays so and names the test that fails where one does not mean what is said here.
//
// A name of this file that a torch lacks fails the build, which says which. What two versions of
// torch spell differently is chosen here by the compiler.
//
// Not here, because they are the interface that every extension is written with, and nothing works
// without them: THPVariable_*, THPDtype_*, THPDevice*, getTHPDtype, HANDLE_TH_ERRORS,
// unsafeGetTensorImpl, c10::Dispatcher, at::_ops, the key set of the thread and its guards.
//
// For folders that link habana_mp_torch; the core knows no torch. What needs pybind11 is in
// base/torch_private_python.h: pybind11 makes every file that includes it take four seconds more.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/python_headers.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace torch::autograd::generated {
struct MulBackward0;
struct ToCopyBackward0;
}  // namespace torch::autograd::generated

namespace habana_mp::torch_private {

// Dispatch keys that torch has and gives no kernels and no users.

// The key of our kernels. torch has it for tests of the dispatcher and registers nothing for it. It
// comes before those of autocast, and, as a policy is to meet the ops that the user calls and not
// what vmap makes of them, before torch.func's; those between (DeferredInit) are off inside vmap.
inline constexpr c10::DispatchKey kKernelKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
static_assert(kKernelKey > c10::DispatchKey::AutocastPrivateUse1 &&
              kKernelKey > c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
// torch.export's records come before it: habana_mp/_compiled/export.py.
static_assert(kKernelKey < c10::DispatchKey::PreDispatch);

// The autocast switches of device types that nobody casts on: off by default, per thread, carried
// by torch to the threads of a backward pass, and guarded by torch.compile. Python names the same
// three: habana_mp/_scope/disable_casts.py, habana_mp/_autocast/neighbours.py.
inline constexpr c10::DispatchKey kCastsOffKey = c10::DispatchKey::AutocastIPU;
inline constexpr c10::DispatchKey kConvertOffKey = c10::DispatchKey::AutocastXLA;
inline constexpr c10::DispatchKey kRegionKey = c10::DispatchKey::AutocastMAIA;

// The device types whose autocast dtypes spell the code of a region (src/scope/codes.h).
inline constexpr std::array kSigns = {c10::DeviceType::MAIA, c10::DeviceType::MPS,
                                      c10::DeviceType::MTIA};
inline constexpr std::array kSignKeys = {kRegionKey, c10::DispatchKey::AutocastMPS,
                                         c10::DispatchKey::AutocastMTIA};

// Tensors

// Whether torch has made the tensor of a Python number.
inline bool is_wrapped_number(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// The Python object of a tensor, null where it has none; borrowed.
inline PyObject* python_object(const at::TensorBase& tensor) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
}

// How often a tensor with a Python object is held where nobody else has an alias of it: by that
// object, by its gradient accumulator, and by DistributedDataParallel, which has a hook there and
// holds the tensor in two lists, or in three once it has seen a backward pass.
inline std::size_t most_known_holds(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr) return 1;
  const auto accumulator = meta->grad_accumulator_.lock();
  if (!accumulator) return 1;
  return accumulator->post_hooks().empty() ? 2 : 5;
}

// Whether a tensor has a tangent of forward-mode AD. torch looks for it under a lock of the tensor,
// under which it also waits for the GIL: so it is asked only of one that has had one, or has a
// base.
inline bool has_tangent(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr && (meta->fw_grad_ != nullptr || meta->is_view_) &&
         tensor._fw_grad(/*level=*/0).defined();
}

// Whether nobody but the storage holds its Python object. With or without the GIL: the object lives
// as long as the caller holds the storage, and what torch has for this question waits for the GIL.
inline bool is_sole_owner_of_python_object(const c10::StorageImpl& storage) {
  const PyObject* object = const_cast<c10::StorageImpl&>(storage).pyobj_slot()->load_pyobj();
  return object != nullptr && Py_REFCNT(const_cast<PyObject*>(object)) == 1;
}

// A version counter has no address that torch shows; it is one pointer.
inline bool is_same_counter(const c10::VariableVersion& a, const c10::VariableVersion& b) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  return std::memcmp(&a, &b, sizeof(void*)) == 0;
}

// A tensor of its own over the same memory, which shares its version counter and not its history.
inline at::Tensor alias_of(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(),
                                                 /*allow_tensor_metadata_change=*/false));
}

// at::empty_strided takes no allocator.
inline at::Tensor empty_strided_on_cpu(at::IntArrayRef sizes, at::IntArrayRef strides,
                                       c10::Allocator* memory, at::ScalarType type) {
  static constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CPU);
  return at::detail::empty_strided_generic(sizes, strides, memory, kKeys, type);
}

inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// The names of the Python types whose tensors stand for others in a compiler's trace.
inline bool is_fake_type(std::string_view name) {
  return name == "FakeTensor" || name == "FunctionalTensor";
}

// oneDNN's packed products and convolutions, which torch has for its compiler

// An op by name and type; null where this torch lacks it.
template <typename Signature>
std::optional<c10::TypedOperatorHandle<Signature>> op_named(const char* name) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!op) return std::nullopt;
  return op->typed<Signature>();
}

using PackLinear = at::Tensor(const at::Tensor&, std::optional<std::int64_t>);
using PackedLinear = at::Tensor(const at::Tensor&, const at::Tensor&,
                                const std::optional<at::Tensor>&, std::string_view,
                                c10::List<std::optional<at::Scalar>>,
                                std::optional<std::string_view>);

inline const auto& linear_packer() {
  static const auto op = op_named<PackLinear>("mkldnn::_reorder_linear_weight");
  return op;
}

inline const auto& packed_linear_op() {
  static const auto op = op_named<PackedLinear>("mkldnn::_linear_pointwise");
  return op;
}

using PackConvolution = at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef,
                                   at::IntArrayRef, std::int64_t, at::OptionalIntArrayRef);
using PackedConvolution = at::Tensor(const at::Tensor&, const at::Tensor&,
                                     const std::optional<at::Tensor>&, at::IntArrayRef,
                                     at::IntArrayRef, at::IntArrayRef, std::int64_t,
                                     std::string_view, c10::List<std::optional<at::Scalar>>,
                                     std::optional<std::string_view>);

inline const auto& convolution_packer() {
  static const auto op = op_named<PackConvolution>("mkldnn::_reorder_convolution_weight");
  return op;
}

inline const auto& packed_convolution_op() {
  static const auto op = op_named<PackedConvolution>("mkldnn::_convolution_pointwise");
  return op;
}

// Whether there is a packed product in the dtype, bfloat16 or float16, on this CPU.
inline bool packs(at::ScalarType dtype) {
  const auto supported = op_named<bool()>(dtype == at::kHalf ? "mkldnn::_is_mkldnn_fp16_supported"
                                                             : "mkldnn::_is_mkldnn_bf16_supported");
  return supported && supported->call() && linear_packer() && packed_linear_op() &&
         convolution_packer() && packed_convolution_op();
}

// outputs x inputs.
inline at::Tensor pack_linear(const at::Tensor& weight) {
  return linear_packer()->call(weight, std::nullopt);
}

// rows x inputs by a packed weight, plus a bias that may be undefined.
inline at::Tensor packed_linear(const at::Tensor& input, const at::Tensor& packed,
                                const at::Tensor& bias) {
  const auto given = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return packed_linear_op()->call(input, packed, given, "none",
                                  c10::List<std::optional<at::Scalar>>(), "");
}

// Each a number for a dimension of the image, and the groups.
struct ConvolutionNumbers {
  at::IntArrayRef padding, stride, dilation;
  std::int64_t groups;
};

// `images`: the sizes of an input.
inline at::Tensor pack_convolution(const at::Tensor& weight, const ConvolutionNumbers& numbers,
                                   at::IntArrayRef images) {
  return convolution_packer()->call(weight, numbers.padding, numbers.stride, numbers.dilation,
                                    numbers.groups, images);
}

inline at::Tensor packed_convolution(const at::Tensor& input, const at::Tensor& packed,
                                     const at::Tensor& bias, const ConvolutionNumbers& numbers) {
  const auto given = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return packed_convolution_op()->call(input, packed, given, numbers.padding, numbers.stride,
                                       numbers.dilation, numbers.groups, "none",
                                       c10::List<std::optional<at::Scalar>>(), "");
}

// The memory of a packed weight; null where this torch does not tell.
inline const void* packed_data(const at::Tensor& packed) {
  static const auto data = op_named<std::int64_t(const at::Tensor&)>("mkldnn::data_ptr");
  return data ? reinterpret_cast<const void*>(data->call(packed)) : nullptr;
}

inline std::size_t packed_bytes(const at::Tensor& packed) {
  static const auto bytes = op_named<std::int64_t(const at::Tensor&)>("mkldnn::_nbytes");
  return bytes ? static_cast<std::size_t>(bytes->call(packed)) : packed.nbytes();
}

// Autograd

// torch's node of a cast: compiled autograd knows it, what it holds and how it is saved.
// <torch/csrc/autograd/generated/Functions.h> defines it.
using CastNode = torch::autograd::generated::ToCopyBackward0;

// torch's node of a product, which holds its factors as `self_` and `other_`, by its name.
using ProductNode = torch::autograd::generated::MulBackward0;
inline constexpr std::string_view kProductNode = "MulBackward0";

// A node as an edge holds it: shared_ptr in torch 2.11, intrusive_ptr in 2.13.
template <typename Pointer, typename Node>
Pointer as_pointer(Node* node) {
  if constexpr (requires { Pointer::unsafe_steal_from_new(node); }) {
    return Pointer::unsafe_steal_from_new(node);
  } else {
    return Pointer(node, [](auto* last) { deleteNode(last); });
  }
}

// The leaf whose gradient the node that runs on this thread adds up; undefined elsewhere.
inline at::Tensor accumulating_leaf() {
  const auto node = torch::autograd::get_current_node();
  const auto* adds = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
  return adds == nullptr ? at::Tensor() : adds->variable;
}

// By the names that the compiler has for their classes: a node that is a torch.autograd.Function,
// and a hook that was registered from C++, as ours are.
inline bool is_python_node(std::string_view type) { return type.find("PyNode") != type.npos; }
inline bool is_hook_of_cpp(std::string_view type) { return type.find("CppFunction") != type.npos; }

// Whether what autograd saves on this thread goes to functions of Python: a checkpoint saves
// nothing and runs again.
inline bool has_saved_tensor_hooks() {
  return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

// The number of the backward pass that runs on this thread; -1 outside.
inline int graph_task() { return torch::autograd::get_current_graph_task_id(); }

// Which threads are those of a step: torch hands what Python has put on a thread on to the threads
// of its backward passes.
inline std::string thread_mark(std::uint64_t number) { return "hmp." + std::to_string(number); }
inline bool is_marked(std::uint64_t number) {
  using at::impl::ThreadLocalPythonObjects;
  const std::string mark = thread_mark(number);
  return ThreadLocalPythonObjects::contains(mark) && ThreadLocalPythonObjects::get(mark) != nullptr;
}
template <typename Objects = at::impl::ThreadLocalPythonObjects>
void mark_thread(std::uint64_t number, bool marked) {
  if (marked) {
    Objects::set(thread_mark(number), std::make_shared<c10::SafePyObject>(nullptr, nullptr));
  } else if (is_marked(number)) {
    if constexpr (requires { Objects::erase(thread_mark(number)); }) {  // since torch 2.13
      Objects::erase(thread_mark(number));
    } else {
      Objects::set(thread_mark(number), nullptr);
    }
  }
}

// Who looks on

// How many listeners the dispatcher has for ops on this thread: a profiler, our report.
inline std::size_t op_listeners() {
  const auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  return callbacks ? callbacks->callbacks_.size() : 0;
}

// Whether a compiler traces on this thread, with tensors that stand for others.
inline bool in_fake_mode() {
  return c10::impl::TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE)
      .has_value();
}

// Whether a TorchFunctionMode is in force on this thread.
inline bool in_function_mode() { return at::impl::torch_function_mode_enabled(); }

// The reading of device names: the constructor of c10::Device that takes a string, as the linker
// knows it, and an address in libtorch_cpu, which reads them for TorchScript.
inline constexpr const char* kDeviceParser =
    "_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
inline const void* inside_libtorch_cpu() {
  return reinterpret_cast<const void*>(&c10::Dispatcher::realSingleton);
}

// CPython

// What a type or a base of it holds under a name, without descriptors and without errors; borrowed,
// null where there is nothing.
inline PyObject* in_type(PyTypeObject* type, PyObject* name) { return _PyType_Lookup(type, name); }

// From now on calls of a Python function run `call`: PyFunction_SetVectorcall of Python 3.12, whose
// slot Python 3.10 and 3.11 have without it.
inline void set_vectorcall(PyObject* function, vectorcallfunc call) {
  auto* python = reinterpret_cast<PyFunctionObject*>(function);
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(python, call);
#else
  python->vectorcall = call;
#endif
}

}  // namespace habana_mp::torch_private
