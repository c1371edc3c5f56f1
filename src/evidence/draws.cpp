#include "evidence/draws.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <array>
#include <mutex>

namespace habana_mp::evidence {
namespace {

thread_local Draws* again = nullptr;

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard guard(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard guard(generator.mutex());
  generator.set_state(state);
}

}  // namespace

bool draws_alike(std::string_view op) {
  if (op.ends_with('_')) op.remove_suffix(1);
  constexpr std::array<std::string_view, 9> kNames = {"dropout",
                                                      "native_dropout",
                                                      "alpha_dropout",
                                                      "feature_dropout",
                                                      "feature_alpha_dropout",
                                                      "rrelu",
                                                      "rrelu_with_noise",
                                                      "scaled_dot_product_attention",
                                                      "_scaled_dot_product_attention_math"};
  return std::ranges::find(kNames, op) != kNames.end();
}

Draws::Draws(c10::ArrayRef<c10::IValue> arguments)
    : generator_(at::globalContext().defaultGenerator(at::kCPU)) {
  for (const c10::IValue& each : arguments) {
    if (each.isGenerator()) generator_ = each.toGenerator();
  }
  before_ = state_of(generator_);
}

SameDraws::SameDraws(Draws* draws) {
  again = draws;
  if (draws != nullptr) draws->after_ = state_of(draws->generator_);
}

SameDraws::~SameDraws() { again = nullptr; }

Redrawn::Redrawn() {
  if (again == nullptr) return;
  now_ = state_of(again->generator_);
  set_state(again->generator_, again->before_);
}

Redrawn::~Redrawn() {
  if (now_.defined()) set_state(again->generator_, now_);
}

bool Redrawn::as_many() const {
  return !now_.defined() || at::equal(state_of(again->generator_), again->after_);
}

}  // namespace habana_mp::evidence
