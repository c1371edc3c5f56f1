#include "call/no_kernel.h"

#include <algorithm>
#include <array>
#include <bit>

namespace habana_mp {

bool blames_low_dtype(std::string_view message) {
  // Only the first line: what follows is where in C++ it was raised.
  message = message.substr(0, message.find("\nException raised from"));
  // The others are of linalg, quantile, view_as_complex, complex and norms.
  static constexpr std::array<std::string_view, 7> kMarks = {
      "BFloat16",
      "Half",
      "ow precision dtypes",
      "other than float and double",
      "either float or double",
      "float, double",
      "mixed dtype",
  };
  return std::ranges::any_of(kMarks, [message](std::string_view mark) {
    const std::size_t found = message.find(mark);
    if (found == std::string_view::npos) return false;
    // "Half-life" is no dtype.
    const std::size_t end = found + mark.size();
    return end == message.size() || message[end] != '-';
  });
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
