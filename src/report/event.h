// What happens, as one value for every listener: the call of an op with the decision about it, its
// casts and its time. It must not know Python, torch or how a decision is made.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "listen/event.h"
#include "policy/decide.h"
#include "policy/dtype.h"
#include "report/site.h"

namespace habana_mp::report {

using listen::CallTexts;
using listen::Cast;

// The module whose forward runs and the user's line: "Net: encoder.layers.0", "train.py:31". It
// takes long to find. With the GIL.
using Where = std::function<std::pair<std::string, std::string>()>;

// The call of an op. What decide() saw and said is known when it begins, the rest when it has
// ended.
struct Call {
  SiteKey key{};
  Decision decision = kLeftAlone;
  bool casting = false;  // the decision casts something
  std::span<const Arg> arguments{};
  const CallTexts* texts = nullptr;  // of a decided call, until it has begun
  const Where* where = nullptr;      // the same

  SiteId site = kNone;
  std::uint64_t ns = 0;       // without the calls inside that have rows of their own
  unsigned input_dtypes = 0;  // dtypes of its tensors, a dtype_bit() each
  unsigned ran = 0;           // and those that it ran in
  std::span<const Cast> casts{};
  std::array<std::uint64_t, kDTypeCount> made{};  // bytes of its results, by dtype; views not
  bool in_optimizer = false;                      // in the step of one
  // The numbers of the autograd nodes that the op made on this thread: [first, last). Its casts
  // are made before them.
  std::uint64_t first_node = 0;
  std::uint64_t last_node = 0;
};

}  // namespace habana_mp::report
