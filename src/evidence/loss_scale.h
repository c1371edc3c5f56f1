// What a loss is multiplied by before its backward pass, as a GradScaler does.
#pragma once

#include <ATen/core/Tensor.h>

namespace habana_mp::evidence {

struct LossScale {
  double all = 1;  // the product of the last factors that are one number each, without gradient
  double by_tensor = 1;  // of those before a number of Python: as the scale of a GradScaler
};

LossScale loss_scale(const at::Tensor& loss);

}  // namespace habana_mp::evidence
