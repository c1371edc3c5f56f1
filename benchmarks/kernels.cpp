// The speed of the cast kernels, beside memcpy of the same bytes, on one thread:
//   cmake -S . -B build/bench -DHABANA_MP_CORE_ONLY=ON -DHABANA_MP_BENCHMARKS=ON
//   cmake --build build/bench && build/bench/kernels [seconds a figure, 0.3 by default]
// A figure is GB/s of what is read and written together, the best of all runs in its time. Where
// two things are compared their runs take turns, so that other load meets both.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "cast/cast_kernels.h"

using namespace habana_mp;
using cast::Stores;

namespace {

constexpr DType F16 = DType::Float16, BF16 = DType::BFloat16, F32 = DType::Float32;
constexpr struct Cast {
  DType from, to;
} kCasts[] = {{F32, BF16}, {BF16, F32}, {F32, F16}, {F16, F32}, {BF16, F16}, {F16, BF16}};

double seconds_a_figure = 0.3;

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

// Best GB/s of each of `runs`, which take turns.
std::vector<double> measure(std::size_t bytes, const std::vector<std::function<void()>>& runs) {
  using Clock = std::chrono::steady_clock;
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{8} << 20) / bytes);
  std::vector<double> best(runs.size(), 0);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds_a_figure *
                                                                static_cast<double>(runs.size()));
  for (int round = 0; round < 3 || Clock::now() < end; ++round) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto start = Clock::now();
      for (std::size_t repeat = 0; repeat < repeats; ++repeat) runs[i]();
      const std::chrono::duration<double> time = Clock::now() - start;
      best[i] = std::max(best[i], static_cast<double>(bytes * repeats) / time.count() / 1e9);
    }
  }
  return best;
}

void print_contiguous(std::size_t count, const char* title) {
  std::printf("\n%s elements, GB/s\n%-12s %-20s %8s %8s %8s %8s\n", title, "variant", "cast",
              "cached", "stream", "memcpy", "ratio");
  const Buffer source = buffer_of(count * 4), target = buffer_of(count * 4);
  for (const cast::Variant variant : cast::available()) {
    cast::force(variant);
    for (const Cast& one : kCasts) {
      const DType from = one.from, to = one.to;
      const std::size_t bytes = count * (cast::element_size(from) + cast::element_size(to));
      const auto best = measure(
          bytes,
          {[&] { cast::kernel(from, to)(source.get(), target.get(), count); },
           [&] { cast::kernel(from, to, Stores::Streaming)(source.get(), target.get(), count); },
           [&] { std::memcpy(target.get(), source.get(), bytes / 2); }});
      std::printf("%-12s %-8s -> %-8s %8.1f %8.1f %8.1f %8.2f\n", cast::variant_name(variant),
                  dtype_name(from), dtype_name(to), best[0], best[1], best[2],
                  std::max(best[0], best[1]) / best[2]);
    }
  }
  cast::reset();
}

std::uint64_t sum_of(const void* memory, std::size_t bytes) {
  const auto* words = static_cast<const std::uint64_t*>(memory);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes / sizeof *words; ++i) sum += words[i];
  return sum;
}

void print_sizes() {
  std::printf(
      "\nThe fastest variant by size, cached and streamed, GB/s of the cast's bytes: the cast; the "
      "cast\n"
      "and one reading of its target; into new memory each time\n");
  std::printf("%-20s %11s %15s %15s %15s\n", "cast", "target", "cast", "and read", "new memory");
  for (const Cast& one : {kCasts[0], kCasts[1]}) {
    const DType from = one.from, to = one.to;
    for (std::size_t count = std::size_t{1} << 17; count <= std::size_t{1} << 26; count *= 2) {
      const std::size_t target_bytes = count * cast::element_size(to);
      const Buffer source = buffer_of(count * cast::element_size(from)),
                   target = buffer_of(target_bytes);
      volatile std::uint64_t sum = 0;
      const auto run = [&](Stores stores) {
        return [&, stores] { cast::kernel(from, to, stores)(source.get(), target.get(), count); };
      };
      const auto run_and_read = [&](Stores stores) {
        return [&, stores] {
          cast::kernel(from, to, stores)(source.get(), target.get(), count);
          sum = sum_of(target.get(), target_bytes);
        };
      };
      const auto run_fresh = [&](Stores stores) {
        return [&, stores] {
          const Buffer fresh(std::aligned_alloc(64, target_bytes));
          cast::kernel(from, to, stores)(source.get(), fresh.get(), count);
        };
      };
      constexpr Stores kCached = Stores::Cached, kStreaming = Stores::Streaming;
      const auto best =
          measure(count * cast::element_size(from) + target_bytes,
                  {run(kCached), run(kStreaming), run_and_read(kCached), run_and_read(kStreaming),
                   run_fresh(kCached), run_fresh(kStreaming)});
      std::printf("%-8s -> %-8s %7zu KiB %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f\n", dtype_name(from),
                  dtype_name(to), target_bytes >> 10, best[0], best[1], best[2], best[3], best[4],
                  best[5]);
    }
  }
}

void print_transposed() {
  std::printf("\nTransposed squares, GB/s\n%-12s %-20s %6s %8s %8s %8s\n", "variant", "cast",
              "side", "cached", "stream", "memcpy");
  for (const cast::Variant variant : {cast::Variant::Scalar, cast::available().back()}) {
    cast::force(variant);
    for (const Cast& one : kCasts) {
      const DType from = one.from, to = one.to;
      for (const std::size_t side : {64, 512, 2048, 8192}) {
        const Buffer source = buffer_of(side * side * 4), target = buffer_of(side * side * 4);
        const auto run = [&](Stores stores) {
          cast::cast_2d(from, to, source.get(), 1, static_cast<std::ptrdiff_t>(side), target.get(),
                        side, side, stores);
        };
        const std::size_t bytes = side * side * (cast::element_size(from) + cast::element_size(to));
        const auto best =
            measure(bytes, {[&] { run(Stores::Cached); }, [&] { run(Stores::Streaming); },
                            [&] { std::memcpy(target.get(), source.get(), bytes / 2); }});
        std::printf("%-12s %-8s -> %-8s %6zu %8.1f %8.1f %8.1f\n", cast::variant_name(variant),
                    dtype_name(from), dtype_name(to), side, best[0], best[1], best[2]);
      }
    }
  }
  cast::reset();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) seconds_a_figure = std::atof(argv[1]);
  print_contiguous(std::size_t{1} << 17, "128 Ki");
  print_contiguous(std::size_t{1} << 26, "64 Mi");
  print_sizes();
  print_transposed();
}
