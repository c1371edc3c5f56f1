#include "convert/low_results.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstddef>

#include "cast/dtypes.h"

namespace habana_mp {
namespace {

// Parameters are made of results of a few calls before.
constexpr std::size_t kKept = 32;

struct Made {
  c10::weak_intrusive_ptr<c10::StorageImpl> memory{
      c10::intrusive_ptr<c10::StorageImpl>()};  // weak: not its memory, but its address is kept
  const PatchedOp* op = nullptr;                // patched ops are never freed
};
thread_local std::array<Made, kKept> made;
thread_local std::size_t next = 0;

bool is_low(const at::Tensor& tensor) { return may_be_low(number_dtype(tensor)); }

}  // namespace

void remember_low_result(const PatchedOp& op, PyObject* result) {
  if (result == nullptr || !THPVariable_Check(result)) return;
  const at::Tensor& tensor = THPVariable_Unpack(result);
  if (!tensor.defined() || !is_low(tensor) || !tensor.has_storage()) return;
  made[next] = {tensor.storage().getWeakStorageImpl(), &op};
  next = (next + 1) % kKept;
}

const PatchedOp* maker_of(PyObject* object) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!tensor.defined() || !is_low(tensor) || !tensor.has_storage()) return nullptr;
  for (const Made& each : made) {
    if (each.op == nullptr) continue;
    const auto memory = each.memory.lock();
    if (memory && memory.get() == tensor.storage().unsafeGetStorageImpl()) return each.op;
  }
  return nullptr;
}

}  // namespace habana_mp
