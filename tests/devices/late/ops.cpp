// Every op that has no kernel of its own: a kernel of the CPU, queued on the current stream, over
// the bytes of the device. What sizes the results have is asked of the op's kernel for tensors
// without data. Ops whose results depend on numbers wait for the stream.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "memory.h"
#include "streams.h"
#include "tensors.h"

namespace late {
namespace {

using torch::jit::Stack;

// Their kernels for tensors without data cannot know the sizes.
constexpr std::array<std::string_view, 9> kDependOnNumbers = {
    "aten::nonzero",    "aten::masked_select",      "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
    "aten::equal",      "aten::repeat_interleave",  "aten::_assert_async",
};

template <typename Map>
c10::IValue mapped(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(map(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      list.push_back(each && each->defined() ? std::optional(map(*each)) : each);
    }
    return list;
  }
  return value;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> found;
  mapped(value, [&](const at::Tensor& tensor) {
    if (tensor.defined()) found.push_back(tensor);
    return tensor;
  });
  return found;
}

struct Call {
  const c10::OperatorHandle& op;
  const c10::FunctionSchema& schema;
  Stack arguments;
  c10::DeviceIndex device;
  c10::Stream stream;

  Call(const c10::OperatorHandle& op, Stack* stack)
      : op(op),
        schema(op.schema()),
        arguments(torch::jit::last(*stack, schema.arguments().size()).vec()),
        device(device_of(arguments)),
        stream(current_stream(device)) {
    torch::jit::drop(*stack, arguments.size());
  }

  static c10::DeviceIndex device_of(const Stack& arguments) {
    for (const c10::IValue& each : arguments) {
      for (const at::Tensor& tensor : tensors_of(each)) {
        if (is_late(tensor)) return tensor.device().index();
      }
      if (each.isDevice() && each.toDevice().has_index()) return each.toDevice().index();
    }
    return current_device();
  }

  bool is_written(std::size_t argument) const {
    const auto* alias = schema.arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  // The argument that a result is, if it is one.
  std::optional<std::size_t> written_result(std::size_t result) const {
    const auto* alias = schema.returns()[result].alias_info();
    if (alias == nullptr) return std::nullopt;
    TORCH_CHECK(alias->isWrite(), "late device: no kernel for the view ", op.operator_name());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* other = schema.arguments()[i].alias_info();
      if (other != nullptr && other->isWrite() && other->beforeSets() == alias->beforeSets())
        return i;
    }
    TORCH_CHECK(false, "late device: which argument is the result of ", op.operator_name());
  }

  bool returns_arguments() const {
    for (std::size_t i = 0; i < schema.returns().size(); ++i) {
      if (schema.returns()[i].alias_info() == nullptr) return false;
    }
    return true;
  }

  bool depends_on_numbers() const {
    if (std::ranges::find(kDependOnNumbers, schema.name()) != kDependOnNumbers.end()) return true;
    if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return !returns_arguments();
    return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
      return !result.type()->isSubtypeOf(*c10::TensorType::get()) &&
             !result.type()->isSubtypeOf(*c10::ListType::ofTensors());
    });
  }

  // With tensors that a kernel of the CPU may use when the turn of the call has come.
  Stack for_kernels() const {
    Stack made;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue value = mapped(arguments[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        if (!is_late(tensor)) {
          TORCH_CHECK(!is_written(i), "late device: ", op.operator_name(),
                      " writes to memory of the host");
          return tensor.clone();
        }
        TORCH_CHECK(tensor.device().index() == device, "late device: ", op.operator_name(),
                    " is given tensors of two devices");
        return for_kernel(tensor);
      });
      if (value.isDevice()) value = c10::Device(c10::kCPU);
      made.push_back(std::move(value));
    }
    // Which stream comes first must not change what is drawn.
    for (std::size_t i = 0; i < made.size(); ++i) {
      const auto kind = schema.arguments()[i].type();
      const bool optional = kind->kind() == c10::TypeKind::OptionalType;
      if (!optional || !kind->containedType(0)->isSubtypeOf(*c10::GeneratorType::get()) ||
          !made[i].isNone())
        continue;
      auto& drawn = *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
      const std::lock_guard lock(drawn.mutex_);
      made[i] = at::make_generator<at::CPUGeneratorImpl>(drawn.random64());
    }
    return made;
  }

  // What it returns of tensors without data.
  Stack without_data() const {
    Stack made;
    for (const c10::IValue& each : arguments) {
      c10::IValue value = mapped(each, [](const at::Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        return at::empty_strided(tensor.sizes(), tensor.strides(),
                                 tensor.options().device(at::kMeta));
      });
      if (value.isDevice()) value = c10::Device(c10::kMeta);
      made.push_back(std::move(value));
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &made);
    return made;
  }

  // Convolutions of the CPU choose by what they find there.
  bool channels_last() const {
    if (!schema.name().starts_with("aten::convolution")) return false;
    return std::ranges::any_of(arguments, [](const c10::IValue& each) {
      return each.isTensor() && each.toTensor().defined() && each.toTensor().dim() == 4 &&
             each.toTensor().suggest_memory_format() == at::MemoryFormat::ChannelsLast;
    });
  }

  at::Tensor like(const at::Tensor& tensor) const {
    if (!tensor.defined()) return tensor;
    if (tensor.dim() == 4 && channels_last()) {
      return empty_tensor(tensor.sizes(), c10::get_channels_last_strides_2d(tensor.sizes()),
                          tensor.scalar_type(), device);
    }
    return empty_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type(), device);
  }
};

// Outputs that a user gives may have other sizes; torch gives some with none.
void resize_outputs(const Call& call) {
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (!call.schema.arguments()[i].is_out()) continue;
    for (const at::Tensor& each : tensors_of(call.arguments[i])) outputs.push_back(each);
  }
  if (std::ranges::none_of(outputs, [](const at::Tensor& each) { return each.numel() == 0; }))
    return;
  const Stack results = call.without_data();
  for (std::size_t i = 0; i < outputs.size() && i < results.size(); ++i) {
    if (results[i].isTensor() && results[i].toTensor().sizes() != outputs[i].sizes()) {
      outputs[i].resize_(results[i].toTensor().sizes());
    }
  }
}

// With the name of the op in its errors.
void run(const c10::OperatorHandle& op, Stack& arguments) {
  try {
    op.callBoxed(&arguments);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, op.operator_name(), ": ", error.what_without_backtrace());
  }
}

// A kernel may write its outputs in several sizes, one after the other.
void run_with_outputs(const c10::OperatorHandle& op, Stack arguments) {
  const auto& declared = op.schema().arguments();
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!declared[i].is_out()) continue;
    arguments[i] = mapped(arguments[i], [&](const at::Tensor& tensor) {
      outputs.emplace_back(tensor, at::empty({0}, tensor.options()));
      return outputs.back().second;
    });
  }
  run(op, arguments);
  for (const auto& [tensor, made] : outputs) {
    TORCH_CHECK(tensor.sizes() == made.sizes(), op.operator_name(), " writes ", made.sizes(),
                ", not ", tensor.sizes());
    tensor.copy_(made);
  }
}

void queue_on_arguments(const Call& call, Stack* stack) {
  resize_outputs(call);
  enqueue(call.stream, [op = call.op, given = call.for_kernels()] { run_with_outputs(op, given); });
  for (std::size_t i = 0; i < call.schema.returns().size(); ++i) {
    stack->push_back(call.arguments[*call.written_result(i)]);
  }
}

void copy_result(const c10::IValue& from, const c10::IValue& to, const std::string& name) {
  const auto source = tensors_of(from), target = tensors_of(to);
  TORCH_CHECK(source.size() == target.size(), name, " returns another number of tensors");
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i].numel() == 0) continue;  // statistics that nobody reads
    TORCH_CHECK(source[i].sizes() == target[i].sizes(), name, " returns ", source[i].sizes(),
                ", not ", target[i].sizes());
    target[i].copy_(source[i]);
  }
}

void queue_with_results(const Call& call, Stack* stack) {
  const Stack known = call.without_data();
  const auto like = [&](const at::Tensor& tensor) { return call.like(tensor); };
  Stack results, targets;
  for (std::size_t i = 0; i < known.size(); ++i) {
    const auto argument = call.written_result(i);
    results.push_back(argument ? call.arguments[*argument] : mapped(known[i], like));
    targets.push_back(argument ? c10::IValue()
                               : mapped(results.back(), [](const at::Tensor& tensor) {
                                   return tensor.defined() ? for_kernel(tensor) : tensor;
                                 }));
  }
  enqueue(call.stream, [op = call.op, given = call.for_kernels(), targets] {
    Stack arguments = given;
    run(op, arguments);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (!targets[i].isNone())
        copy_result(arguments[i], targets[i], c10::toString(op.operator_name()));
    }
  });
  for (c10::IValue& each : results) stack->push_back(std::move(each));
}

void run_now(const Call& call, Stack* stack) {
  TORCH_CHECK(call.returns_arguments() || call.schema.returns().empty() ||
                  call.schema.returns()[0].alias_info() == nullptr,
              "late device: no kernel for ", call.op.operator_name());
  synchronize(call.stream);
  Stack results = call.for_kernels();
  call.op.callBoxed(&results);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (const auto argument = call.written_result(i)) {
      stack->push_back(call.arguments[*argument]);
      continue;
    }
    stack->push_back(mapped(results[i], [&](const at::Tensor& tensor) {
      const at::Tensor made = call.like(tensor);
      if (made.defined())
        enqueue(call.stream, [tensor, target = for_kernel(made)] { target.copy_(tensor); });
      return made;
    }));
  }
}

// As kernels of CUDA do: numbers in a low dtype beside weights in another, but of batch norms,
// which refuse two weights of two dtypes.
void refuse_mixed_norm(const Call& call) {
  const std::string& name = call.schema.name();
  const bool batch = name == "aten::native_batch_norm";
  if (!batch && name != "aten::native_layer_norm" && name != "aten::native_group_norm") return;
  std::vector<at::Tensor> alike;
  for (std::size_t i = batch ? 1 : 0; i < (batch ? 3 : call.arguments.size()); ++i)
    std::ranges::copy(tensors_of(call.arguments[i]), std::back_inserter(alike));
  for (const at::Tensor& each : alike) {
    TORCH_CHECK(each.scalar_type() == alike.front().scalar_type(), "expected scalar type ",
                alike.front().scalar_type(), " but found ", each.scalar_type());
  }
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const Call call(op, stack);
  refuse_mixed_norm(call);
  ++counts().kernels;
  const Unseen unseen;
  if (call.depends_on_numbers()) return run_now(call, stack);
  if (call.returns_arguments()) return queue_on_arguments(call, stack);
  queue_with_results(call, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// torch would take them apart, or ask a backend for other ops in their place.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"convolution", "convolution_backward", "native_layer_norm", "native_layer_norm_backward",
        "native_group_norm", "native_group_norm_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace
}  // namespace late
