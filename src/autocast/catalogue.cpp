#include "autocast/catalogue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/op_schema.h"
#include "call/weight_ops.h"
#include "policy/names.h"

namespace habana_mp::autocast {
namespace {

// The aten ops, each as (base name, full name, handle). In the order of their names only where that
// is asked for: the first conversion waits for it.
template <typename Visit>
void for_each_op(bool in_order, const Visit& visit) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorName> names = dispatcher.getAllOpNames();
  if (in_order) {
    std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
      return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
    });
  }
  for (const c10::OperatorName& name : names) {
    if (!name.name.starts_with(kAten)) continue;
    const auto handle = dispatcher.findSchema(name);
    if (!handle.has_value()) continue;
    const std::string base(without_aten(name.name));
    visit(base, name.overload_name.empty() ? base : base + "." + name.overload_name, *handle);
  }
}

int tensor_arguments(const c10::FunctionSchema& schema) {
  int count = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!argument.is_out()) count += static_cast<int>(tensors_of(argument));
  }
  return count;
}
static_assert(static_cast<int>(Holds::Tensor) == 1 && static_cast<int>(Holds::List) == 2);

}  // namespace

Catalogue::Catalogue() {
  std::vector<std::string> spellings;
  std::string spelled_for;
  for_each_op(/*in_order=*/true,
              [&](const std::string& base, std::string full, const c10::OperatorHandle& handle) {
                std::optional<Form> form = form_of(handle.schema());
                if (!form) return;
                if (base != spelled_for) {
                  spelled_for = base;
                  spellings.clear();
                  for (const std::vector<std::string>& level : dispatched_candidates(base)) {
                    spellings.insert(spellings.end(), level.begin(), level.end());
                  }
                }
                for (const std::string& spelling : spellings)
                  by_name[spelling].push_back(ops.size());
                if (full != base) by_name[full].push_back(ops.size());
                const Layout layout = packed_layout(full);
                const Int8Op int8 = int8_op(full);
                const auto ours = weight_op(full);
                ops.push_back({.handle = handle,
                               .name = std::move(full),
                               .form = std::move(*form),
                               .index = ops.size(),
                               .computes = habana_mp::computes(base),
                               .product = is_product(base),
                               .may_lack_low_kernel = habana_mp::may_lack_low_kernel(base),
                               .refuses_mixed = habana_mp::refuses_mixed(base),
                               .norm = is_norm(base),
                               .insides = insides_of(base),
                               .layout = layout,
                               .int8 = int8,
                               .weight_op = ours});
              });
}

Catalogue& catalogue() {
  static auto* all = new Catalogue;  // the dispatcher keeps our kernels to the end
  return *all;
}

std::unordered_map<std::string, int> aten_tensor_arguments() {
  std::unordered_map<std::string, int> result;
  for_each_op(/*in_order=*/false, [&](const std::string& base, const std::string& full,
                                      const c10::OperatorHandle& handle) {
    const int count = tensor_arguments(handle.schema());
    int& largest = result[base];
    largest = std::max(largest, count);
    if (full != base) result[full] = count;
  });
  return result;
}

}  // namespace habana_mp::autocast
