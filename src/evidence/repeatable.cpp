#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/op_schema.h"
#include "evidence/rerun.h"

namespace habana_mp::evidence {
namespace {

using report::Unmeasured;

struct Named {
  std::string_view part;  // of the name
  Unmeasured why;
};

// What no schema says. The backward of recurrent layers, except torch's own cells, consumes what
// the forward keeps in reserve, in its dtype; so does that of batch norms. cuDNN's blocks of
// weights are views into one memory, and MIOpen's forward was never run.
constexpr std::array kNamed = {
    Named{"cudnn_rnn_backward", Unmeasured::Reserve},
    Named{"cudnn_rnn_flatten_weight", Unmeasured::Reserve},
    Named{"miopen_rnn", Unmeasured::Reserve},
    Named{"lstm_mps", Unmeasured::Reserve},
    Named{"mkldnn_rnn_layer_backward", Unmeasured::Reserve},
    Named{"cudnn_batch_norm_backward", Unmeasured::Reserve},
    Named{"miopen_batch_norm_backward", Unmeasured::Reserve},
    Named{"cudnn_attention", Unmeasured::Reserve},
    Named{"_philox", Unmeasured::Random},
    Named{"dropout_mask", Unmeasured::Random},
    Named{"sobol_engine", Unmeasured::Writes},
};

// What the forward has kept for the backward: a second run would find it consumed, or in another
// dtype than it reads it in.
constexpr std::array<std::string_view, 5> kReserves = {"workspace", "reserve", "reserveSpace",
                                                       "reservedSpace", "layersOutputs"};

constexpr std::array<std::string_view, 5> kCollectives = {
    "c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "symm_mem::", "_dtensor::"};

bool draws(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  // Attention draws where it drops something alone: a call knows.
  const bool drops = std::ranges::any_of(
      arguments, [](const c10::Argument& each) { return each.name() == "dropout_p"; });
  if (op.hasTag(at::Tag::nondeterministic_seeded) && !drops) return true;
  return std::ranges::any_of(arguments, [](const c10::Argument& each) {
    return each.type()->str().find("Generator") != std::string::npos;
  });
}

bool writes_more(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (schema.returns().empty() || op.hasTag(at::Tag::inplace_view)) return true;
  unsigned written = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!is_written(argument)) continue;
    written += argument.type()->kind() == c10::TypeKind::TensorType ? 1 : 2;  // or a list
  }
  return written > 1;
}

// With each instrument that begins: what a thread knows of kernels from before is out of date.
std::atomic<std::uint64_t> kernels_asked{0};

struct Kernels {
  std::uint64_t asked = 0;
  std::map<std::pair<const c10::FunctionSchema*, c10::DispatchKey>, bool> python{};
};

// Each line of the table says where a kernel was registered: "CPU: registered at /home/me/ops.py:12
// [kernel]". To ask for one kernel, torch would keep a token for as long as that lives.
bool is_python(const c10::OperatorHandle& op, c10::DispatchKey backend) {
  const c10::DispatchKey graph = c10::getAutogradKeyFromBackend(c10::toBackendComponent(backend));
  std::istringstream table(op.dumpComputedTable());
  for (std::string line; std::getline(table, line);) {
    if (line.find(".py:") == std::string::npos) continue;
    for (const c10::DispatchKey key : {backend, graph}) {
      if (line.starts_with(std::string(c10::toString(key)) + ':')) return true;
    }
  }
  return false;
}

}  // namespace

Unmeasured why_not_again(const c10::OperatorHandle& op) {
  const std::string_view name = op.schema().name();
  const std::string_view own = without_aten(name);
  if (own == name) {
    const bool waits = std::ranges::any_of(
        kCollectives, [&](std::string_view space) { return name.starts_with(space); });
    return waits ? Unmeasured::Collective : Unmeasured::Library;
  }
  for (const Named& each : kNamed) {
    if (own.find(each.part) != std::string_view::npos) return each.why;
  }
  const bool reserves = std::ranges::any_of(op.schema().arguments(), [](const c10::Argument& each) {
    return std::ranges::find(kReserves, each.name()) != kReserves.end();
  });
  if (reserves) return Unmeasured::Reserve;
  if (draws(op)) return Unmeasured::Random;
  return writes_more(op) ? Unmeasured::Writes : Unmeasured::None;
}

void forget_kernels() { ++kernels_asked; }

bool runs_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  thread_local Kernels known;
  if (known.asked != kernels_asked.load(std::memory_order_relaxed))
    known = {.asked = kernels_asked.load(std::memory_order_relaxed)};
  const c10::DispatchKey backend = c10::legacyExtractDispatchKey(keys);
  const auto [found, fresh] = known.python.try_emplace({&op.schema(), backend}, false);
  if (fresh) found->second = is_python(op, backend);
  return found->second;
}

}  // namespace habana_mp::evidence
