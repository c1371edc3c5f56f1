#include "cast/numbers.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <span>
#include <vector>

#include "base/torch_private.h"
#include "cast/parallel.h"
#include "cast/storage_check.h"
#include "kernels/cast_kernels.h"
#include "listen/hears.h"
#include "scope/state.h"

namespace habana_mp {
namespace {

void cast_dense(const char* source, char* target, DType from, DType to, int64_t count,
                kernels::Stores stores) {
  const kernels::Kernel kernel = kernels::kernel(from, to, stores);
  const auto share = [=](int64_t begin, int64_t end) {
    kernel(source + begin * static_cast<int64_t>(kernels::element_size(from)),
           target + begin * static_cast<int64_t>(kernels::element_size(to)),
           static_cast<std::size_t>(end - begin));
  };
  in_parallel(0, count, kGrain, share);
}

void cast_any(const at::Tensor& source, const at::Tensor& target, DType from, DType to,
              kernels::Stores stores) {
  const auto span = [](at::IntArrayRef values) {
    return std::span<const std::int64_t>(values.data(), values.size());
  };
  const kernels::StridedCast strided(from, to, span(source.sizes()), span(source.strides()),
                                     span(target.strides()));
  run_in_parallel(strided, source.const_data_ptr(), target.mutable_data_ptr(), stores);
}

void cast_on_cpu(const at::Tensor& source, const at::Tensor& target) {
  const DType from = number_dtype(source);
  const DType to = number_dtype(target);
  auto stores = kernels::stores_for(from, to, static_cast<std::size_t>(source.numel()),
                                    at::get_num_threads() > 1);
  if (stores == kernels::Stores::Streaming && is_fresh(target.storage().data_ptr())) {
    stores = kernels::Stores::Cached;
  }
  // Without gaps and in one order the elements are an array, of any number of dimensions.
  if (source.strides() == target.strides() && source.is_non_overlapping_and_dense()) {
    cast_dense(static_cast<const char*>(source.const_data_ptr()),
               static_cast<char*>(target.mutable_data_ptr()), from, to, source.numel(), stores);
  } else {
    cast_any(source, target, from, to, stores);
  }
}

// Whether somebody beside our report listens to the ops that torch dispatches: a profiler.
bool is_profiled() {
  const std::size_t ours = listen::anyone_hears(listen::Hears::Calls) ? 1 : 0;
  return torch_private::op_listeners() > ours;
}

// On every device: what a kernel reads past the end of a storage is no error on any.
void check_memory(const at::Tensor& tensor) {
  if (tensor.has_storage() && !tensor.is_meta()) check_storage(tensor);
}

// ATen casts what is elsewhere than in the CPU's memory, float8, and what a profiler looks at.
bool by_aten(const at::Tensor& source) {
  return !source.is_cpu() || !eligible(number_dtype(source)) || is_profiled();
}

}  // namespace

bool is_ordinary(const at::Tensor& tensor) {
  // inference_mode takes a key out of what is included by default, a region of autocast adds one.
  static constexpr c10::DispatchKeySet kVaries({c10::DispatchKey::ADInplaceOrView, autocast::kKey});
  static constexpr c10::DispatchKeySet kOwn =
      c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::ADInplaceOrView}) |
      c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask) |
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset;
  // Compared as bits: the difference of two key sets keeps the bits of their backends.
  return (tensor.key_set().raw_repr() & ~kOwn.raw_repr()) == 0 &&
         (c10::impl::tls_local_dispatch_key_set().included_ | kVaries) ==
             (c10::default_included_set | kVaries) &&
         !torch_private::has_tangent(tensor);
}

void cast_numbers_into(const at::Tensor& source, const at::Tensor& target) {
  check_memory(source);
  check_memory(target);
  if (!by_aten(source)) return cast_on_cpu(source, target);
  const at::AutoDispatchBelowADInplaceOrView guard;
  target.copy_(source);
}

at::Tensor cast_numbers(const at::Tensor& source, DType to, at::IntArrayRef strides,
                        Lifetime lifetime) {
  check_memory(source);
  const at::ScalarType type = scalar_type(to);
  if (by_aten(source)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (strides.empty()) return source.to(type);
    return at::empty_strided(source.sizes(), strides, source.options().dtype(type)).copy_(source);
  }
  std::vector<int64_t> dense;
  if (strides.empty() && source.is_non_overlapping_and_dense()) {
    // Those of dimensions of size 1 too, which say whether the tensor is channels-last.
    strides = source.strides();
  } else if (strides.empty()) {
    dense = at::infer_dense_strides(source.sizes(), source.strides());
    strides = dense;
  }
  at::Tensor result =
      torch_private::empty_strided_on_cpu(source.sizes(), strides, result_memory(lifetime), type);
  cast_on_cpu(source, result);
  return result;
}

}  // namespace habana_mp
