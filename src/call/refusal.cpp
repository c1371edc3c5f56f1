#include "call/refusal.h"

namespace habana_mp {

std::string refusal(std::string_view op, std::string_view rule) {
  // "error: op, place": a place may have commas, and names of ops have none.
  const std::size_t comma = rule.find(", ");
  const std::string where(comma == rule.npos ? rule : rule.substr(comma + 2));
  const std::string name(op);
  if (op.starts_with("binary_cross_entropy")) {
    // Begins as the error of torch.autocast does.
    return "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
           "The policy in force (" +
           where + ") refuses " + name +
           " because its backward can leave the range of the lower precision. Use "
           "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe, or put the call "
           "in hmp.disable_casts().";
  }
  return "The policy in force (" + where + ") lists " + name +
         " as an error, so it must not be called while casts are on. hmp.disable_casts() switches "
         "them off.";
}

}  // namespace habana_mp
