#include "weights/collective_watch.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <vector>

#include "weights/weight_cache.h"

namespace habana_mp {
namespace {

// Those whose arguments are written to.
constexpr std::array kWriting = {"broadcast_",
                                 "allreduce_",
                                 "allreduce_coalesced_",
                                 "allgather_",
                                 "_allgather_base_",
                                 "reduce_scatter_",
                                 "_reduce_scatter_base_",
                                 "reduce_",
                                 "gather_",
                                 "scatter_",
                                 "alltoall_",
                                 "alltoall_base_",
                                 "recv_",
                                 "recv_any_source_"};

void collect(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) collect(item, tensors);
  }
}

void call_and_tell(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  std::vector<at::Tensor> tensors;
  const std::size_t arguments = op.schema().arguments().size();
  for (const c10::IValue& value : torch::jit::last(*stack, arguments)) collect(value, tensors);
  // Without a guard: what a collective does inside, on threads of its own too, moves version
  // counters.
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) weight_cache().end_alias(tensor, /*exported=*/false);
  }
}

}  // namespace

std::unique_ptr<torch::Library> watch_collectives() {
  std::unique_ptr<torch::Library> library;
  for (const char* name : kWriting) {
    if (!c10::Dispatcher::singleton().findSchema({std::string("c10d::") + name, ""})) continue;
    if (library == nullptr) {
      library = std::make_unique<torch::Library>(
          torch::Library::IMPL, "c10d", c10::DispatchKey::ADInplaceOrView, __FILE__, __LINE__);
    }
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<call_and_tell>());
  }
  return library;
}

}  // namespace habana_mp
