#include "watch/tensor_history.h"

#include "weights/weight_cache.h"

namespace habana_mp {

unsigned count_cast(History& history, const at::TensorBase& tensor, DType to, report::SiteId site) {
  const std::uint32_t version =
      tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
  const std::uint64_t epoch = weight_cache().epoch();
  const void* data = tensor.const_data_ptr();
  const bool same = history.times > 0 && history.cast_to == to && history.version == version &&
                    history.epoch == epoch && history.data == data &&
                    history.numel == tensor.numel();
  if (!same) {
    history.times = 0;
    history.first = site;
    history.cast_to = to;
    history.version = version;
    history.epoch = epoch;
    history.data = data;
    history.numel = tensor.numel();
  }
  return ++history.times;
}

}  // namespace habana_mp
