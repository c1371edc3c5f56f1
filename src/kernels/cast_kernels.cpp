// Which variant runs. See cast_kernels.h.
#include "kernels/cast_kernels.h"

#include <algorithm>
#include <array>
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

// Both by the variant; of another processor there are no kernels.
constexpr std::array kNames = {"scalar", "avx2", "avx512", "avx512_bf16", "neon"};
constexpr const KernelTable* kTables[kNames.size()] = {
    &kScalarKernels,
#if defined(__x86_64__)
    &kAvx2Kernels,
    &kAvx512Kernels,
    &kAvx512Bf16Kernels,
#elif defined(__aarch64__)
    nullptr,         nullptr, nullptr, &kNeonKernels,
#endif
};

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
  return std::ranges::find(available(), variant) != available().end();
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
  const auto* named = std::ranges::find(kNames, std::string_view(wanted));
  if (named == kNames.end()) {
    throw std::invalid_argument(std::string(kEnvironment) + "=" + wanted +
                                " is not a variant. This CPU runs " + available_names());
  }
  const auto variant = static_cast<Variant>(named - kNames.begin());
  if (is_available(variant)) return variant;
  throw std::invalid_argument(std::string(kEnvironment) + "=" + wanted +
                              " is a variant that this CPU cannot run. It runs " +
                              available_names());
}

// Two threads may both choose, and choose the same.
constexpr int kNotChosen = -1;
std::atomic<int> chosen{kNotChosen};

}  // namespace

const char* variant_name(Variant variant) { return kNames[static_cast<std::size_t>(variant)]; }

std::span<const Variant> available() {
  static const std::vector<Variant> found = detect();
  return found;
}

Variant active() {
  int variant = chosen.load(std::memory_order_relaxed);
  if (variant == kNotChosen) {
    variant = static_cast<int>(choose());
    chosen.store(variant, std::memory_order_relaxed);
  }
  return static_cast<Variant>(variant);
}

void force(Variant variant) {
  if (!is_available(variant)) {
    throw std::invalid_argument(std::string(variant_name(variant)) +
                                " is a variant that this CPU cannot run. It runs " +
                                available_names());
  }
  chosen.store(static_cast<int>(variant), std::memory_order_relaxed);
}

void reset() { chosen.store(kNotChosen, std::memory_order_relaxed); }

Kernel kernel(DType from, DType to, Stores stores) {
  const KernelTable& kernels = *kTables[static_cast<std::size_t>(active())];
  const auto& table = stores == Stores::Streaming ? kernels.streaming : kernels.cached;
  const Kernel found = table[static_cast<int>(from)][static_cast<int>(to)];
  if (found == nullptr) {
    throw std::invalid_argument(std::string("no cast from ") + dtype_name(from) + " to " +
                                dtype_name(to));
  }
  return found;
}

}  // namespace habana_mp::kernels
