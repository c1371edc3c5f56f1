// The numbers of calls, measured while a report wants them: each op is run once more, in float32 or
// in the low dtype, and the gradient of its result is multiplied with the difference.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "report/report.h"
#include "report/values.h"

namespace habana_mp::probe {

// A report that listens from now on. Reports that measure need not agree: what one of them asks for
// is measured for all, with the low dtype of the last. std::runtime_error where another probe looks
// at the numbers.
// `own_thread`: of this thread and its backward passes alone.
std::shared_ptr<report::Report> open_report(const report::Measure& measure = {},
                                            bool own_thread = false);
void close_report(const report::Report& report);

// A backward pass of a random sum of outputs, in place of a loss: for all reports that measure.
void begin_projection();
void end_projection();
// The next backward pass begins there, with this gradient.
void begin_backward_at(const at::Tensor& root, const at::Tensor& gradient);

}  // namespace habana_mp::probe
