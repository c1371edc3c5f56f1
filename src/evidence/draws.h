// A call that draws random numbers, made again with those that it has drawn. The state of its
// generator is put back for that, and afterwards is what the program left it at.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string_view>

namespace habana_mp::evidence {

// Whether the op draws the same numbers in each dtype, on the CPU: those that only compare what
// they draw with a probability, or draw in float64. A GPU draws by vectors, whose width is of the
// dtype.
bool draws_alike(std::string_view op);

// The generator of a call on the CPU: as it was before, and as the call has left it.
class Draws {
 public:
  // When the call begins.
  explicit Draws(c10::ArrayRef<c10::IValue> arguments);

 private:
  friend class SameDraws;
  friend class Redrawn;
  at::Generator generator_;
  at::Tensor before_, after_;
};

// The call has ended. While this lives, calls that this thread makes again draw what it has drawn.
class SameDraws {
 public:
  explicit SameDraws(Draws* draws);  // null: of a call that draws nothing
  ~SameDraws();
  SameDraws(const SameDraws&) = delete;
  SameDraws& operator=(const SameDraws&) = delete;
};

// A call that is made again.
class Redrawn {
 public:
  Redrawn();
  ~Redrawn();
  Redrawn(const Redrawn&) = delete;
  Redrawn& operator=(const Redrawn&) = delete;

  // Whether the call, which has ended, drew as many as at first: another thread may have drawn
  // between.
  bool as_many() const;

 private:
  at::Tensor now_;
};

}  // namespace habana_mp::evidence
