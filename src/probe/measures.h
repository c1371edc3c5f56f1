// What is measured of one call of an op, by a second run of it in the other dtype.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "evidence/choices.h"
#include "probe/measured_call.h"
#include "report/values.h"

namespace habana_mp::probe {

void add(report::Values& values, const evidence::Flips& flips);

// Of an op that adds: what of it is lost in the dtypes.
void measure_absorbed(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                      report::Values& values);

// Of a call in a low dtype: its error against float32, and what its results are off by.
void measure_low_run(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                     const report::Measure& measure, report::Values& values,
                     std::vector<Off>& waiting);

// Of a call in float32: the error that it would have in the low dtype.
void measure_what_if(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                     const report::Measure& measure, report::Values& values,
                     std::vector<Off>& waiting);

// Of a call that rounds nothing: what its arguments are rounded by, as it comes out of it; or, in
// `waiting`, what its results would be if these were not rounded before, where that is another.
void pass_on(const MeasuredCall& context, const std::vector<c10::IValue>& results,
             std::vector<Off>& waiting);

// Of which results of a call others of it are made.
void find_inner(const MeasuredCall& context, const std::vector<c10::IValue>& results,
                std::vector<Off>& waiting);

}  // namespace habana_mp::probe
