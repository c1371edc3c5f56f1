#include "call/packed_choice.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "base/clock.h"
#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "cast/dtypes.h"

namespace habana_mp {
namespace {

struct Choices {
  std::map<Shape, By> made;
  ForkSafeMutex mutex;
};

// Row counts that share a choice: up to each of these. More rows share that of the most, where
// packing gains little.
constexpr std::array<std::int64_t, 9> kMostRows = {1, 4, 8, 16, kFewRows, 64, 128, 256, 512};
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 24;  // of a weight that is tried

// What is tried in place of a shape: as many rows as those that share the choice, and not more
// outputs than tell how fast they are.
Shape tried(Shape shape) {
  const auto most = std::ranges::lower_bound(kMostRows, shape.rows);
  shape.rows = most == kMostRows.end() ? kMostRows.back() : *most;
  shape.outputs = std::min(shape.outputs, std::max<std::int64_t>(64, kMostNumbers / shape.inputs));
  return shape;
}

std::int64_t fewest_rows(std::int64_t most) {
  const auto found = std::ranges::lower_bound(kMostRows, most);
  return found == kMostRows.begin() ? 1 : *(found - 1) + 1;
}

// Numbers of both signs that are no multiples of each other, so that another order of additions
// shows, and another place of a number.
at::Tensor made_up(std::int64_t rows, std::int64_t columns, DType dtype) {
  constexpr std::int64_t kPattern = 65'521;  // a prime: it falls elsewhere in each row
  at::Tensor result = at::empty({rows, columns}, at::dtype(scalar_type(dtype)));
  const auto fill = [&]<typename Number>(Number* numbers) {
    const std::int64_t count = rows * columns;
    for (std::int64_t i = 0; i < std::min(count, kPattern); ++i) {
      const auto hash = static_cast<std::uint32_t>(i + 1) * 2'654'435'769U;
      numbers[i] = static_cast<Number>(static_cast<float>(hash >> 8) / 8388608.0F - 1.0F);
    }
    for (std::int64_t i = kPattern; i < count; i += kPattern) {
      std::copy_n(numbers, std::min(kPattern, count - i), numbers + i);
    }
  };
  if (dtype == DType::Float16) {
    fill(result.mutable_data_ptr<at::Half>());
  } else {
    fill(result.mutable_data_ptr<at::BFloat16>());
  }
  return result;
}

// The ways to compute the products of one shape.
class Trial {
 public:
  explicit Trial(const Shape& shape)
      : shape_(shape),
        weight_(made_up(shape.outputs, shape.inputs, shape.to)),
        plain_(shape.layout == Layout::Addmm ? weight_.t().contiguous() : weight_),
        packed_{pack(plain_, shape.layout)},
        rows_(made_up(shape.rows, shape.inputs, shape.to)) {
    packed_.data = packed_data(packed_.copy);
    if (shape.bias) bias_ = made_up(1, shape.outputs, shape.to).view({shape.outputs});
  }

  // The fastest, among those of equal numbers where these are asked for.
  By fastest() const {
    std::vector<By> ways{By::PlainCopy};
    if (is_allowed(By::OneDnn)) ways.push_back(By::OneDnn);
    const bool ours =
        has_kernel(shape_.to, shape_.rows, shape_.inputs, shape_.outputs, shape_.threads);
    if (ours && is_readable(packed_, weight_) && is_allowed(By::OurKernel)) {
      ways.push_back(By::OurKernel);
    }
    constexpr std::uint64_t kEnough = 5'000'000;  // ns
    constexpr int kMostRounds = 7;
    std::array<std::uint64_t, 3> taken;
    taken.fill(std::numeric_limits<std::uint64_t>::max());
    const std::uint64_t start = now_ns();
    for (int round = 0; round < kMostRounds && now_ns() - start < kEnough; ++round) {
      for (const By way : ways) {
        const std::uint64_t begun = now_ns();
        run(way, rows_, bias_);
        auto& best = taken[static_cast<std::size_t>(way)];
        best = std::min(best, now_ns() - begun);
      }
    }
    // Packing saves work at best, so what is slower by a little is a disturbed measurement.
    auto& plain = taken[static_cast<std::size_t>(By::PlainCopy)];
    plain += plain / 16;
    return static_cast<By>(std::ranges::min_element(taken) - taken.begin());
  }

 private:
  at::Tensor run(By way, const at::Tensor& rows, const at::Tensor& bias) const {
    return way == By::PlainCopy ? product_of_plain(shape_.layout, rows, plain_, bias)
                                : product(way, rows, packed_, bias);
  }

  bool is_allowed(By way) const {
    return shape_.packing != Packing::Equal ||
           (is_equal(way, rows_) && is_equal(way, rows_.slice(0, 0, fewest_rows(shape_.rows))));
  }

  bool is_equal(By way, const at::Tensor& rows) const {
    const at::Tensor plain = run(By::PlainCopy, rows, bias_);
    if (!at::equal(plain, run(way, rows, bias_))) return false;
    if (!shape_.bias) return true;
    // Most differences of the sums are lost when they are rounded; taken off a result they show.
    const at::Tensor off = plain.select(0, 0).neg();
    return at::equal(run(By::PlainCopy, rows, off), run(way, rows, off));
  }

  const Shape& shape_;
  const at::Tensor weight_, plain_;
  WeightCache::Packed packed_;
  const at::Tensor rows_;
  at::Tensor bias_;
};

// Without a measurement: how packed weights lie is looked at once.
By unmeasured(const Shape& shape) {
  static const bool readable = [] {
    const at::Tensor plain = made_up(130, 97, DType::BFloat16);
    WeightCache::Packed packed{pack(plain, Layout::Linear)};
    packed.data = packed_data(packed.copy);
    return is_readable(packed, plain);
  }();
  return readable && has_kernel(shape.to, shape.rows, shape.inputs, shape.outputs, shape.threads)
             ? By::OurKernel
             : By::OneDnn;
}

// In nobody's profile, and with an error of nobody: who runs out of memory here goes on without.
By found_out(const Shape& shape) {
  const at::DisableRecordFunctionGuard unseen;
  const c10::InferenceMode no_grad;
  try {
    return shape.packing == Packing::Always ? unmeasured(shape) : Trial(shape).fastest();
  } catch (const c10::Error&) {
  } catch (const std::bad_alloc&) {
  }
  return By::PlainCopy;
}

}  // namespace

By chosen(const Shape& shape) {
  const Shape key = tried(shape);
  auto& choices = process_wide<Choices>();
  {
    const std::lock_guard lock(choices.mutex);
    const auto found = choices.made.find(key);
    if (found != choices.made.end()) return found->second;
  }
  const By way = found_out(key);
  const std::lock_guard lock(choices.mutex);
  return choices.made.try_emplace(key, way).first->second;
}

}  // namespace habana_mp
