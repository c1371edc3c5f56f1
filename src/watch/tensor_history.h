// What the report remembers of tensors: which op made one, which ops it went through since it was
// last cast, and how often it was cast as it is.
#pragma once

#include <cstdint>

#include "cast/by_memory.h"
#include "policy/dtype.h"
#include "report/site.h"

namespace habana_mp {

struct History {
  report::SiteId maker = report::kNone;
  report::PathId path = report::kNone;
  std::uint64_t path_ns = 0;  // of the cast that the path began with

  // The last cast, and what the tensor was like then.
  DType cast_to = DType::Other;
  report::SiteId first = report::kNone;
  unsigned times = 0;
  std::uint32_t version = 0;
  std::uint64_t epoch = 0;  // of the weight cache: fused optimizers do not move the version
  const void* data = nullptr;
  std::int64_t numel = 0;
};

using TensorHistories = ByMemory<History>;  // with the observer's lock

}  // namespace habana_mp
