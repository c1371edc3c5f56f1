// Which variant runs. See cast_kernels.h.
#include "kernels/cast_kernels.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace habana_mp::kernels {
namespace {

constexpr const char* kEnvironment = "HABANA_MP_CAST_VARIANT";

struct Named {
  Variant variant;
  const char* name;
};
constexpr Named kNames[] = {{Variant::Scalar, "scalar"},
                            {Variant::Avx2, "avx2"},
                            {Variant::Avx512, "avx512"},
                            {Variant::Avx512Bf16, "avx512_bf16"},
                            {Variant::Neon, "neon"}};

const KernelTable& table_of(Variant variant) {
  switch (variant) {
#if defined(__x86_64__)
    case Variant::Avx2:
      return kAvx2Kernels;
    case Variant::Avx512:
      return kAvx512Kernels;
    case Variant::Avx512Bf16:
      return kAvx512Bf16Kernels;
#elif defined(__aarch64__)
    case Variant::Neon:
      return kNeonKernels;
#endif
    default:
      return kScalarKernels;
  }
}

std::vector<Variant> detect() {
  std::vector<Variant> found{Variant::Scalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // clang has no name for F16C here.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!__builtin_cpu_supports("avx2") || !f16c) return found;
  found.push_back(Variant::Avx2);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return found;
  }
  found.push_back(Variant::Avx512);
  if (__builtin_cpu_supports("avx512bf16")) found.push_back(Variant::Avx512Bf16);
#elif defined(__aarch64__)
  found.push_back(Variant::Neon);
#endif
  return found;
}

bool is_available(Variant variant) {
  for (const Variant other : available()) {
    if (other == variant) return true;
  }
  return false;
}

std::string available_names() {
  std::string names;
  for (const Variant variant : available()) {
    if (!names.empty()) names += ", ";
    names += variant_name(variant);
  }
  return names;
}

Variant choose() {
  const char* wanted = std::getenv(kEnvironment);
  if (wanted == nullptr || *wanted == '\0') return available().back();
  for (const Named& named : kNames) {
    if (std::string_view(wanted) != named.name) continue;
    if (is_available(named.variant)) return named.variant;
    throw std::invalid_argument(std::string(kEnvironment) + "=" + wanted +
                                " is a variant that this CPU cannot run. It runs " +
                                available_names());
  }
  throw std::invalid_argument(std::string(kEnvironment) + "=" + wanted +
                              " is not a variant. This CPU runs " + available_names());
}

// Null until first used. Two threads may both choose, and choose the same.
std::atomic<const KernelTable*> active_table{nullptr};

const KernelTable& active_kernels() {
  const KernelTable* table = active_table.load(std::memory_order_relaxed);
  if (table == nullptr) {
    table = &table_of(choose());
    active_table.store(table, std::memory_order_relaxed);
  }
  return *table;
}

}  // namespace

const char* variant_name(Variant variant) {
  for (const Named& named : kNames) {
    if (named.variant == variant) return named.name;
  }
  return "unknown";
}

std::span<const Variant> available() {
  static const std::vector<Variant> found = detect();
  return found;
}

Variant active() {
  const KernelTable& kernels = active_kernels();
  for (const Variant variant : available()) {
    if (&table_of(variant) == &kernels) return variant;
  }
  return Variant::Scalar;
}

void force(Variant variant) {
  if (!is_available(variant)) {
    throw std::invalid_argument(std::string(variant_name(variant)) +
                                " is a variant that this CPU cannot run. It runs " +
                                available_names());
  }
  active_table.store(&table_of(variant), std::memory_order_relaxed);
}

void reset() { active_table.store(nullptr, std::memory_order_relaxed); }

Kernel kernel(DType from, DType to, Stores stores) {
  const KernelTable& kernels = active_kernels();
  const auto& chosen = stores == Stores::Streaming ? kernels.streaming : kernels.cached;
  const Kernel found = chosen[static_cast<int>(from)][static_cast<int>(to)];
  if (found == nullptr) {
    throw std::invalid_argument(std::string("no cast from ") + dtype_name(from) + " to " +
                                dtype_name(to));
  }
  return found;
}

}  // namespace habana_mp::kernels
