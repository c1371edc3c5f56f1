// Numbers that no gradient comes to, since nothing that they are made of requires one (the angles
// of rotary positions): what they would be in float32, or in the low dtype, from the beginning on,
// beside what they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "report/site.h"

namespace habana_mp::evidence {

enum class Throughout : std::uint8_t { Float32, Low };

// The shadow of a tensor, with its sizes and strides; undefined where it has none. `origin`: the
// site that has made most of what the tensor is off by.
at::Tensor shadow_of(const at::Tensor& tensor, Throughout dtype, report::SiteId* origin = nullptr);

// The same of what a function of autograd has returned: no gradient comes to the numbers inside,
// and one comes to these. They are forgotten here. Not of a checkpoint, which runs again with
// gradients, so that its errors count there.
at::Tensor take_shadow(const at::Tensor& tensor, Throughout dtype, report::SiteId& origin);

// `before`: the version of the tensor before it was written to, where it was. What else lies in its
// memory keeps the shadow that it had then.
void keep_shadow(const at::Tensor& tensor, Throughout dtype, const at::Tensor& numbers,
                 report::SiteId origin, std::optional<std::int64_t> before = {});

// The copy of a tensor that is about to be written to has its shadows.
void copy_shadows(const at::Tensor& tensor, const at::Tensor& copy);

std::int64_t version_of(const at::Tensor& tensor);  // 0 of an inference tensor, which has none

void forget_shadows();

}  // namespace habana_mp::evidence
