#include "call/errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <utility>

#include "base/process_wide.h"
#include "policy/op_traits.h"

namespace habana_mp {
namespace {

struct Registered {
  py::function function;
};

py::function& function() { return process_wide<Registered>().function; }

// Of a norm and a low dtype, a bit for each device type.
std::atomic<std::uint32_t>& refusals(std::string_view norm, DType low) {
  static std::array<std::array<std::atomic<std::uint32_t>, kNorms.size()>, 2> known{};
  const auto found = std::ranges::find(kNorms, norm, &Norm::op);
  return known[low == DType::Float16 ? 1 : 0][static_cast<std::size_t>(found - kNorms.begin())];
}

std::uint32_t bit_of(c10::DeviceType device) {
  static_assert(c10::COMPILE_TIME_MAX_DEVICE_TYPES <= 32);
  return std::uint32_t{1} << static_cast<unsigned>(device);
}

// The low dtype that the norm has its input in after the casts, beside float32 weights; Other of
// any other call.
DType mixed_norm(const NormCall& call, const Decision& decision) {
  DType low = DType::Other;
  bool weights = false;
  for (const Arg& arg : call.arguments) {
    const DType dtype = decision.casts(arg) ? decision.to : arg.dtype;
    if (arg.role == Role::Input) {
      if ((dtype_bit(dtype) & kLowBits) != 0) low = dtype;
    } else if (dtype != DType::Float32) {
      return DType::Other;  // that is what was refused
    } else {
      weights = weights || arg.role == Role::Affine;
    }
  }
  return weights ? low : DType::Other;
}

}  // namespace

std::string refusal(std::string_view op, std::string_view rule) {
  // "error: op, place": a place may have commas, and names of ops have none.
  const std::size_t comma = rule.find(", ");
  const std::string where(comma == rule.npos ? rule : rule.substr(comma + 2));
  const std::string name(op);
  if (op.starts_with("binary_cross_entropy")) {
    // Begins as the error of torch.autocast does.
    return "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
           "The policy in force (" +
           where + ") refuses " + name +
           " because its backward can leave the range of the lower precision. Use "
           "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe, or put the call "
           "in hmp.disable_casts().";
  }
  return "The policy in force (" + where + ") lists " + name +
         " as an error, so it must not be called while casts are on. hmp.disable_casts() switches "
         "them off.";
}

bool blames_low_dtype(std::string_view message) {
  // Only the first line: what follows is where in C++ it was raised.
  message = message.substr(0, message.find("\nException raised from"));
  // The others are of linalg, quantile, view_as_complex, complex and norms. The last is oneDNN's,
  // of LSTM on CPUs where it has no bfloat16.
  static constexpr std::array<std::string_view, 8> kMarks = {
      "BFloat16",
      "Half",
      "ow precision dtypes",
      "other than float and double",
      "either float or double",
      "float, double",
      "mixed dtype",
      "could not create a primitive descriptor",
  };
  return std::ranges::any_of(kMarks, [message](std::string_view mark) {
    const std::size_t found = message.find(mark);
    if (found == std::string_view::npos) return false;
    // "Half-life" is no dtype.
    const std::size_t end = found + mark.size();
    return end == message.size() || message[end] != '-';
  });
}

bool lacks_low_kernel(const std::exception& error) {
  if (const auto* of_torch = dynamic_cast<const c10::Error*>(&error)) {
    return blames_low_dtype(of_torch->what_without_backtrace());
  }
  const bool of_python = dynamic_cast<const python_error*>(&error) != nullptr ||
                         dynamic_cast<const pybind11::error_already_set*>(&error) != nullptr;
  return !of_python && blames_low_dtype(error.what());  // oneDNN throws a type of its own
}

Decision decide_norm(const NormCall& call, c10::function_ref<bool()> is_ordinary) {
  const Decision decision = decide(call.rule, call.arguments, call.explicit_dtype);
  if (call.device == c10::DeviceType::CPU) return decision;
  const DType low = mixed_norm(call, decision);
  if (low == DType::Other) return decision;
  const bool refused =
      (refusals(call.norm, low).load(std::memory_order_relaxed) & bit_of(call.device)) != 0;
  if (!refused || !is_ordinary()) return decision;
  return decide_without_low_kernel(call.rule, call.arguments, call.explicit_dtype);
}

void remember_refusal(const NormCall& call) {
  if (call.device == c10::DeviceType::CPU) return;
  const DType low = mixed_norm(call, decide(call.rule, call.arguments, call.explicit_dtype));
  if (low == DType::Other) return;
  refusals(call.norm, low).fetch_or(bit_of(call.device), std::memory_order_relaxed);
}

std::string no_kernel_text(std::span<const Arg> arguments, DType low) {
  std::uint32_t seen = 0;
  for (const Arg& arg : arguments) seen |= dtype_bit(arg.dtype) & kEligibleDTypes;
  const auto none = [](DType dtype) { return std::string("no ") + dtype_name(dtype) + " kernel"; };
  if ((seen & kLowBits) == 0) return none(low);
  if (std::has_single_bit(seen)) return none(static_cast<DType>(std::countr_zero(seen)));
  std::string text = "no kernel for ";
  std::string_view separator;
  for (const DTypeRow& row : kDTypes) {
    if ((seen & dtype_bit(row.dtype)) == 0) continue;
    text.append(separator).append(row.name);
    separator = " with ";
  }
  return text;
}

std::string message_of(const py::object& error) {
  try {
    return py::str(error).cast<std::string>();
  } catch (const std::exception&) {
    PyErr_Clear();
    return "";
  }
}

void set_error_note(py::function registered) { function() = std::move(registered); }

void add_error_note(const std::string& op, std::span<const at::Tensor> tensors) {
  if (!function()) return;
  py::error_already_set error;  // takes the error that is set
  try {
    py::list found;
    for (const at::Tensor& tensor : tensors) found.append(tensor);
    function()(error.value(), op, found, last_lower == nullptr ? "" : *last_lower, py::none(),
               py::arg("casts_off") = false);
  } catch (...) {  // the error itself matters more
    PyErr_Clear();
  }
  error.restore();
}

void add_note_at_end(const py::object& error, const std::shared_ptr<const Policy>& policy,
                     bool casts_off) noexcept {
  try {
    if (!function() || !blames_low_dtype(message_of(error))) return;
    function()(error, "", py::list(), last_lower == nullptr ? "" : *last_lower,
               std::const_pointer_cast<Policy>(policy), py::arg("casts_off") = casts_off);
  } catch (...) {
    PyErr_Clear();
  }
}

}  // namespace habana_mp
