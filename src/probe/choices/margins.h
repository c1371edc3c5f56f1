// Ops that choose by the numbers that they are given, with gradients on: experts by topk, classes
// by argmax. By how little they choose, what their numbers are off by, and what another choice is
// worth: from these three it follows how many choices an error flips, and what that makes of it.
#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

#include "evidence/rerun.h"
#include "report/site.h"

namespace habana_mp::probe {

// By the name of an op in the dispatcher.
bool may_choose(std::string_view op);

// Whether the call chooses by numbers that require gradients, which are there once it has ended.
bool is_choice(const evidence::Op& op, c10::ArrayRef<c10::IValue> arguments);

// It has ended: from here on its twins are followed (probe/choices/twins.h).
void follow_choice(report::SiteId site, const evidence::Op& op,
                   c10::ArrayRef<c10::IValue> arguments, const std::vector<c10::IValue>& results);

// An op begins whose results autograd saves: with hooks, by which a checkpoint runs again, no pass
// of ours may come to it.
void note_saved_tensor_hooks();

// A backward pass of a loss is about to begin, or `passes` of random sums of outputs. Where twins
// have come to them, the listeners hear of the choices before: backward passes of ours say what the
// numbers that they are made by are off by. They begin at these numbers, add no gradient to any
// tensor, and do not run where they would run Python or hooks of others.
void reach_loss(const at::Tensor& loss, double scale);
void reach_outputs(c10::ArrayRef<at::Tensor> outputs, int passes);

void forget_choices();

}  // namespace habana_mp::probe
