// Numbers that no gradient comes to, since nothing that they are made of requires one (the angles
// of rotary positions): what they would be in float32 from the beginning on, beside what they are.
#pragma once

#include <ATen/core/Tensor.h>

#include "report/site.h"

namespace habana_mp::evidence {

// The shadow of a tensor, with its sizes and strides; undefined where it has none. `origin`: the
// site that has made most of what the tensor is off by.
at::Tensor shadow_of(const at::Tensor& tensor, report::SiteId* origin = nullptr);

void keep_shadow(const at::Tensor& tensor, const at::Tensor& numbers, report::SiteId origin);

void forget_shadows();

}  // namespace habana_mp::evidence
