// One call of an op as the dispatcher writes it: its tensors described to decide(), and replaced by
// their casts.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/stack.h>
#include <c10/core/DeviceType.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "autocast/form.h"
#include "call/cast_argument.h"
#include "call/int8_call.h"
#include "call/packed_call.h"
#include "cast/tensors.h"
#include "policy/decide.h"
#include "scope/regions.h"

namespace habana_mp::autocast {

inline const c10::IValue& argument(const Form& form, const torch::jit::Stack& stack,
                                   std::uint8_t position) {
  return stack[stack.size() - form.count + position];
}

// The tensors of a call, and those of one argument of a kernel that has them unboxed.
template <typename Visit>
void for_each_tensor(const Form& form, const torch::jit::Stack& stack, Visit& visit) {
  for (const TensorArgument& place : form.tensors) {
    const c10::IValue& value = argument(form, stack, place.position);
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) visit(item.toTensor());
      }
    }
  }
}

template <typename Argument, typename Visit>
void for_each_tensor(const Argument& argument, Visit& visit) {
  if constexpr (std::is_same_v<Argument, at::Tensor>) {
    visit(argument);
  } else if constexpr (std::is_same_v<Argument, std::optional<at::Tensor>>) {
    if (argument) visit(*argument);
  } else if constexpr (std::is_same_v<Argument, at::TensorList> ||
                       std::is_same_v<Argument, at::ITensorListRef>) {
    for (const at::Tensor& tensor : argument) visit(tensor);
  } else {
    static_assert(!std::is_same_v<Argument, c10::List<std::optional<at::Tensor>>>,
                  "such ops have boxed kernels");
  }
}

// dtype_seen() for a call on tensors of `device`: a tensor of another device type is none of it.
inline DType dtype_on(const at::Tensor& tensor, c10::DeviceType device) {
  return tensor.defined() && tensor.device().type() == device ? dtype_seen(tensor) : DType::Other;
}

// What the tensors of a call are, as bits: DeviceTypes and dtype_bit()s.
struct Seen {
  std::uint32_t devices = 0;
  unsigned dtypes = 0;

  void operator()(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    devices |= std::uint32_t{1} << static_cast<unsigned>(tensor.device().type());
    dtypes |= dtype_bit(dtype_seen(tensor));
  }
  bool on_one_device() const { return (devices & (devices - 1)) == 0; }
};

// The device type that a call is for, as an index into kDevices, by those of all its tensors: of
// the ones that autocast is on for, the one that torch asks first. kDeviceCount where there is
// none.
inline std::size_t device_of(const Seen& seen, c10::DispatchKeySet excluded) {
  for (std::size_t i = 0; i < kDeviceCount; ++i) {
    if ((seen.devices >> static_cast<unsigned>(kDevices[i]) & 1) != 0 && is_on(i, excluded))
      return i;
  }
  return kDeviceCount;
}

class Call {
 public:
  Call(const Form& form, torch::jit::Stack& stack, c10::DeviceType device);

  std::span<const Arg> described() const { return {args_.data(), args_.size()}; }
  bool explicit_dtype() const;  // D11
  bool any_to_cast(const Decision& decision) const;
  // Whether a tracer or a compiler may make the call.
  bool may_be_traced() const;
  // Its tensors as they are now, and after the op its results.
  c10::SmallVector<at::Tensor, 8> tensors() const;
  c10::SmallVector<at::Tensor, 8> results() const;
  // The name of a tensor's argument: "self", "tensors[1]".
  std::string label(std::size_t i, const c10::FunctionSchema& schema) const;

  // Puts the casts into the stack; lists are replaced, the caller's stay as they are. `cached`:
  // those of weights may be the weight cache's.
  void cast(const Decision& decision, bool cached);
  // Whether a trace gets an op of ours (call/weight_ops.h): the decision casts a weight, and no
  // graph is recorded.
  bool is_of_traced_weight(const Decision& decision) const;
  // The same of a weight that is to be in 8 bits.
  bool is_of_traced_int8_weight(Int8Op op) const;
  // Puts the arguments of such an op into the stack: casts of what is no parameter, nor the bias of
  // a product in 8 bits, the dtype, whether weights are in 8 bits, and whether the cache keeps
  // them.
  void cast_but_parameters(Int8Op op, const Decision& decision, bool cached);

  // Whether the op has a weight that is in 8 bits where its rule wants that; and has it computed
  // with it, in place of cast() and the op. What it cannot compute gets arguments that were rounded
  // to 8 bits in place of its own.
  bool has_int8_weight(Int8Op op) const;
  bool compute_int8(Int8Op op, const Decision& decision, bool cached);

  // Has the op computed with a packed weight, where it can be: in place of cast() and the op.
  bool compute_packed(Layout layout, const Decision& decision);

  // After the op: whether a result must not be returned to the caller (LentCopies).
  bool lends() const;
  // Puts the arguments back as they were before cast(), in place of the results.
  void take_back();

 private:
  std::optional<BagResults> int8_bags(const Int8Operands& operands);
  void round_arguments(Int8Op op, const Decision& decision);
  at::Tensor packed_product_of(Layout layout, const PackedOperands& operands);
  at::Tensor packed_convolution_of(const PackedOperands& operands);
  struct Place {
    std::uint8_t position;
    std::int32_t item;  // -1: the argument itself
  };

  c10::IValue& slot(std::uint8_t position) const {
    return stack_[stack_.size() - form_.count + position];
  }
  const at::Tensor& tensor(std::size_t i) const;
  // `stays`: whether the tensor of a number is not cast.
  template <typename Stays>
  void cast(const Decision& decision, How how, const Stays& stays);
  void add(const at::Tensor& tensor, Place place, Role role);

  const Form& form_;
  torch::jit::Stack& stack_;
  const c10::DeviceType device_;
  c10::SmallVector<Arg, 8> args_;
  c10::SmallVector<Place, 8> places_;
  LentCopies lent_;
  std::vector<c10::IValue> given_;  // the arguments, where there are such
};

}  // namespace habana_mp::autocast
