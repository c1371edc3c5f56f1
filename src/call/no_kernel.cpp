#include "call/no_kernel.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <array>
#include <bit>

namespace habana_mp {

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

}  // namespace habana_mp
