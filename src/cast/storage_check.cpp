#include "cast/storage_check.h"

#include <c10/util/StringUtil.h>

#include <stdexcept>

namespace habana_mp {

void refuse_storage(const at::TensorBase& tensor, std::size_t needed) {
  const std::size_t held = tensor.storage().nbytes();
  throw std::runtime_error(c10::str(
      "a ", tensor.scalar_type(), " tensor of shape ", tensor.sizes(),
      " cannot be cast: its shape needs ", needed, " bytes of storage, and its storage ",
      held == 0 ? "was freed" : c10::str("has ", held),
      " (storage.resize_() does that, and FSDP, with weights outside of the forward and backward "
      "pass of their module)"));
}

}  // namespace habana_mp
