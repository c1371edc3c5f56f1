// What a recording has of the arguments of a call: its tensors, and the text of all else.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "evidence/rerun.h"

namespace habana_mp::probe {

// All tensors of arguments, in their order: also indices, which are optional, and undefined ones.
std::vector<at::Tensor> tensors_of(c10::ArrayRef<c10::IValue> values);

bool holds_tensors(const c10::IValue& value);

// An argument that is no tensor, as text. A list of numbers may be as long as a tensor: of a long
// text the beginning and a hash.
std::string text_of(const c10::IValue& value);

// Whether a call inside of another one only casts a number of Python, which is an argument of that.
bool moves_number(const evidence::Op& op, c10::ArrayRef<c10::IValue> inputs);

}  // namespace habana_mp::probe
