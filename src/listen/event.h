// What the engine says of a call: who decided what about it, and its casts. It must not know
// Python, torch or how a decision is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "policy/decide.h"
#include "policy/policy.h"

namespace habana_mp::listen {

enum class FrontEnd : std::uint8_t { None, Convert, Autocast };

// Numbers of what decides calls, by its content: a region that is made anew at each step has one.
// They are hashes, so nothing is kept of policies that come and go.
std::uint64_t decider_id(const Policy& policy, FrontEnd front_end);
// Of a rule of the conversion with this number.
std::uint64_t decider_id(std::uint64_t conversion, std::string_view rule);

struct Cast {
  DType from;
  DType to;
  bool cached;          // the weight cache had it
  std::uint64_t bytes;  // of the result
  std::uint64_t start_ns;
  std::uint64_t ns;
};

// A call in words, and the policy that decided it. They take long to find, so a listener asks only
// for those that it needs. With the GIL.
class CallTexts {
 public:
  virtual std::string name() const = 0;      // as lists spell the op: "mm"
  virtual std::string original() const = 0;  // as Python shows the op: "<built-in function mm>"
  virtual std::string rule() const = 0;      // "lower: mm, lists/hmp/lower.txt:12"
  virtual std::string argument(std::size_t i) const = 0;  // "0", "weight", "tensors[1]"
  virtual std::shared_ptr<const Policy> policy() const = 0;

 protected:
  ~CallTexts() = default;
};

// A call of an op that a rule has decided, as it begins. The references are the caller's.
struct DecidedCall {
  std::uint32_t op;          // number_of() its name (base/name_numbers.h), while calls are heard of
  std::uint64_t decider_id;  // which rule, of which conversion or region
  FrontEnd front_end;
  bool dispatched;  // seen at the dispatcher, not at a name of Python
  bool hides;       // nothing inside it has a row of its own unless a rule decides it
  const Decision& decision;
  bool casting;  // the decision casts something
  std::span<const Arg> arguments;
  const CallTexts& texts;
};

}  // namespace habana_mp::listen
