#include "probe/arguments.h"

#include <sstream>

#include "base/torch_private.h"
#include "evidence/digest.h"

namespace habana_mp::probe {
namespace {

std::string whole_text_of(const c10::IValue& value) {
  if (value.isGenerator() || value.isStorage() || value.isStream() || value.isCapsule()) return "?";
  thread_local std::ostringstream text;  // to make one takes longer than to use it
  text.str({});
  text.clear();
  text << value;
  return text.str();
}

constexpr std::size_t kMostText = 256;

}  // namespace

std::vector<at::Tensor> tensors_of(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> found;
  for (const c10::IValue& value : values) {
    evidence::with_tensors(value, [&](const at::Tensor& tensor) {
      found.push_back(tensor);
      return tensor;
    });
  }
  return found;
}

bool holds_tensors(const c10::IValue& value) {
  return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
}

std::string text_of(const c10::IValue& value) {
  std::string text = whole_text_of(value);
  if (text.size() <= kMostText) return text;
  evidence::Fnv hash;
  for (const char letter : text) hash.add(static_cast<unsigned char>(letter));
  text.resize(kMostText);
  while (!text.empty() && static_cast<unsigned char>(text.back()) > 0x7F) text.pop_back();
  return text + "... " + std::to_string(hash.value);
}

bool moves_number(const evidence::Op& op, c10::ArrayRef<c10::IValue> inputs) {
  if (op.computing || inputs.empty()) return false;
  bool some = false;
  for (const c10::IValue& input : inputs) {
    if (!input.isTensor()) {
      if (holds_tensors(input)) return false;
      continue;
    }
    const at::Tensor& tensor = input.toTensor();
    if (!tensor.defined() || tensor.dim() != 0) return false;
    some = some || torch_private::is_wrapped_number(tensor);
  }
  return some;
}

}  // namespace habana_mp::probe
