#include "evidence/graphs/inner_gradients.h"

#include <mutex>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "evidence/graphs/handed_gradients.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

struct Lock {
  ForkSafeMutex mutex;
};

// Of what all of them have: two backward passes may run through one graph at once.
Lock& lock() { return process_wide<Lock>(); }

}  // namespace

void InnerGradients::add(const at::Tensor& gradient) {
  const int pass = torch_private::graph_task();
  const std::lock_guard guard(lock().mutex);
  parts_.emplace_back(pass, gradient);
}

at::Tensor InnerGradients::without(const at::Tensor& gradient) {
  const int pass = torch_private::graph_task();
  std::vector<at::Tensor> parts;
  {
    const std::lock_guard guard(lock().mutex);
    std::erase_if(parts_, [&](const auto& part) {
      if (part.first == pass) parts.push_back(part.second);
      return part.first == pass;  // what a pass has left that raised goes with the graph
    });
  }
  const OutOfSight out_of_sight;
  at::Tensor left = gradient;
  for (const at::Tensor& part : parts) left = left.sub(part);
  return left;
}

std::shared_ptr<InnerGradients> inner_gradients(const at::Tensor& result,
                                                c10::ArrayRef<at::Tensor> results,
                                                std::uint64_t since) {
  if (result.is_leaf()) return nullptr;
  auto found = std::make_shared<InnerGradients>();
  // It keeps nothing once nobody waits for that.
  const auto add = [to = std::weak_ptr(found)](const at::Tensor& gradient) {
    if (const auto inner = to.lock()) inner->add(gradient);
  };
  return on_gradients(results, {}, since, {{result, add}}) == 0 ? nullptr : found;
}

}  // namespace habana_mp::evidence
