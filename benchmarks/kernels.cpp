// The speed of the cast kernels, beside memcpy of the same bytes, on one thread.
// benchmarks/kernels.py builds it, runs it and makes tables of it. By hand:
//   cmake -S . -B build/bench -DHABANA_MP_CORE_ONLY=ON -DHABANA_MP_BENCHMARKS=ON
//   cmake --build build/bench && build/bench/kernels [seconds a figure, log2 of the most elements]
// Each line is a figure, as JSON: GB/s of what is read and written together, the best of all runs
// in its time. Where things are compared their runs take turns, so that other load meets all of
// them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cast_kernels.h"

using namespace habana_mp;
using kernels::Stores;

namespace {

constexpr DType F16 = DType::Float16, BF16 = DType::BFloat16, F32 = DType::Float32;
constexpr struct Cast {
  DType from, to;
} kCasts[] = {{F32, BF16}, {BF16, F32}, {F32, F16}, {F16, F32}, {BF16, F16}, {F16, BF16}};

double seconds_a_figure = 0.15;
int log2_elements = 26;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, Free>;

// Aligned as torch aligns, every page touched; the bytes are small normal numbers in each type.
Buffer buffer_of(std::size_t bytes) {
  Buffer buffer(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  std::memset(buffer.get(), 0x3c, bytes);
  return buffer;
}

struct Run {
  std::string name;
  std::function<void()> run;
};

// Times the runs, which take turns, and prints a line for each.
void measure(const char* table, const Cast& one, std::size_t elements,
             const std::vector<Run>& runs) {
  using Clock = std::chrono::steady_clock;
  const std::size_t bytes =
      elements * (kernels::element_size(one.from) + kernels::element_size(one.to));
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{8} << 20) / bytes);
  std::vector<double> best(runs.size(), 0);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds_a_figure *
                                                                static_cast<double>(runs.size()));
  for (int round = 0; round < 3 || Clock::now() < end; ++round) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto start = Clock::now();
      for (std::size_t repeat = 0; repeat < repeats; ++repeat) runs[i].run();
      const std::chrono::duration<double> time = Clock::now() - start;
      best[i] = std::max(best[i], static_cast<double>(bytes * repeats) / time.count() / 1e9);
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::printf(R"({"table": "%s", "variant": "%s", "from": "%s", "to": "%s", "elements": %zu, )",
                table, kernels::variant_name(kernels::active()), dtype_name(one.from),
                dtype_name(one.to), elements);
    std::printf("\"run\": \"%s\", \"gb_per_s\": %.2f}\n", runs[i].name.c_str(), best[i]);
  }
}

// Both kinds of stores of `run`.
std::vector<Run> with_stores(const std::string& name, const std::function<void(Stores)>& run) {
  return {{"cached" + name, [=] { run(Stores::Cached); }},
          {"streaming" + name, [=] { run(Stores::Streaming); }}};
}

// Every variant, beside memcpy: an array that the cache holds and one that it does not.
void measure_variants(std::size_t count) {
  const Buffer source = buffer_of(count * 4), target = buffer_of(count * 4);
  for (const kernels::Variant variant : kernels::available()) {
    kernels::force(variant);
    for (const Cast& one : kCasts) {
      const std::size_t copied =
          count * (kernels::element_size(one.from) + kernels::element_size(one.to)) / 2;
      std::vector<Run> runs = with_stores("", [&](Stores stores) {
        kernels::kernel(one.from, one.to, stores)(source.get(), target.get(), count);
      });
      runs.push_back({"memcpy", [&] { std::memcpy(target.get(), source.get(), copied); }});
      measure("variants", one, count, runs);
    }
  }
  kernels::reset();
}

std::uint64_t sum_of(const void* memory, std::size_t bytes) {
  const auto* words = static_cast<const std::uint64_t*>(memory);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes / sizeof *words; ++i) sum += words[i];
  return sum;
}

// The fastest variant by size: the cast; the cast and one reading of its target; into new memory.
void measure_sizes() {
  for (const Cast& one : {kCasts[0], kCasts[1]}) {
    for (int log2 = 17; log2 <= log2_elements; ++log2) {
      const std::size_t count = std::size_t{1} << log2;
      const std::size_t target_bytes = count * kernels::element_size(one.to);
      const Buffer source = buffer_of(count * kernels::element_size(one.from)),
                   target = buffer_of(target_bytes);
      volatile std::uint64_t sum = 0;
      const auto run = [&](void* into, Stores stores) {
        kernels::kernel(one.from, one.to, stores)(source.get(), into, count);
      };
      std::vector<Run> runs = with_stores("", [&](Stores stores) { run(target.get(), stores); });
      for (Run& more : with_stores(" and read", [&](Stores stores) {
             run(target.get(), stores);
             sum = sum_of(target.get(), target_bytes);
           })) {
        runs.push_back(std::move(more));
      }
      for (Run& more : with_stores(", new memory", [&](Stores stores) {
             const Buffer fresh(std::aligned_alloc(64, target_bytes));
             run(fresh.get(), stores);
           })) {
        runs.push_back(std::move(more));
      }
      measure("sizes", one, count, runs);
    }
  }
}

// Squares whose rows are columns in the target.
void measure_transposed() {
  for (const kernels::Variant variant : {kernels::Variant::Scalar, kernels::available().back()}) {
    kernels::force(variant);
    for (const Cast& one : kCasts) {
      for (int log2 = 6; 2 * log2 <= log2_elements; log2 += log2 == 6 ? 3 : 2) {
        const std::size_t side = std::size_t{1} << log2;
        const Buffer source = buffer_of(side * side * 4), target = buffer_of(side * side * 4);
        const std::size_t copied =
            side * side * (kernels::element_size(one.from) + kernels::element_size(one.to)) / 2;
        std::vector<Run> runs = with_stores("", [&](Stores stores) {
          kernels::cast_2d(one.from, one.to, source.get(), 1, static_cast<std::ptrdiff_t>(side),
                           target.get(), static_cast<std::ptrdiff_t>(side), side, side, stores);
        });
        runs.push_back({"memcpy", [&] { std::memcpy(target.get(), source.get(), copied); }});
        measure("transposed", one, side * side, runs);
      }
    }
  }
  kernels::reset();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) seconds_a_figure = std::atof(argv[1]);
  if (argc > 2) log2_elements = std::atoi(argv[2]);
  measure_variants(std::size_t{1} << 17);
  measure_variants(std::size_t{1} << log2_elements);
  measure_sizes();
  measure_transposed();
}
