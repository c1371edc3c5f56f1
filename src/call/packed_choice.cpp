#include "call/packed_choice.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <exception>
#include <map>
#include <mutex>
#include <optional>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"
#include "base/torch_private.h"
#include "kernels/cast_kernels.h"
#include "kernels/linear/linear.h"

namespace habana_mp {
namespace {

template <typename OfShape>
struct Choices {
  std::map<OfShape, Measured> made;
  ForkSafeMutex mutex;

  void forget() {
    const std::lock_guard lock(mutex);
    made.clear();
  }
};

std::atomic<bool> measures = true;

// Products

// Row counts that share a choice: up to each of these. More rows share that of the most, where
// packing gains little.
constexpr std::array<std::int64_t, 9> kMostRows = {1, 4, 8, 16, kFewRows, 64, 128, 256, 512};
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 24;  // of a weight that is tried

// What is tried in place of a shape: the most rows that share the choice, and of a large weight a
// part, which takes less memory and tells as much.
Shape tried(Shape shape) {
  const auto rows = std::ranges::lower_bound(kMostRows, shape.rows);
  shape.rows = rows == kMostRows.end() ? kMostRows.back() : *rows;
  const auto most = std::max<std::int64_t>(64, kMostNumbers / shape.inputs);
  // Of powers of two oneDNN splits k between threads (kernels/linear/linear.h).
  const bool is_power = std::has_single_bit(static_cast<std::uint64_t>(shape.outputs));
  const auto power = std::bit_floor(static_cast<std::uint64_t>(most));
  if (shape.outputs > most) shape.outputs = is_power ? static_cast<std::int64_t>(power) : most;
  return shape;
}

std::int64_t fewest_rows(std::int64_t most) {
  const auto found = std::ranges::lower_bound(kMostRows, most);
  return found == kMostRows.begin() ? 1 : *(found - 1) + 1;
}

By way_of_one_row(Layout layout);

// Whether our kernel can compute such a product with the numbers of oneDNN, where the packed weight
// lies as it reads it.
bool has_kernel(By way, const Shape& shape) {
  if (shape.to != DType::BFloat16 || kernels::active() != kernels::Variant::Avx512Bf16 ||
      shape.rows > kFewRows || (shape.rows == 1 && way != way_of_one_row(shape.layout))) {
    return false;
  }
  const kernels::PackedWeight weight{nullptr, static_cast<std::size_t>(shape.outputs),
                                     static_cast<std::size_t>(shape.inputs)};
  const auto threads = static_cast<std::size_t>(shape.threads);
  if (way == By::OurRow) {
    return shape.rows == 1 && weight.inputs <= kernels::kMostOfOneSum &&
           (shape.layout != Layout::Addmm || !kernels::splits_in_order(weight, threads));
  }
  return way == By::OurKernel &&
         !kernels::splits_inputs(static_cast<std::size_t>(shape.rows), weight, threads);
}

class ProductTrial final : public Trial {
 public:
  explicit ProductTrial(const Shape& shape)
      : shape_(shape),
        weight_(made_up({shape.outputs, shape.inputs}, shape.to)),
        plain_(shape.layout == Layout::Addmm ? weight_.t().contiguous() : weight_),
        packed_{pack(plain_, {shape.layout})} {
    packed_.data = torch_private::packed_data(packed_.copy);
    if (shape.bias) bias_ = made_up({shape.outputs}, shape.to);
    const at::Tensor rows = made_up({shape.rows, shape.inputs}, shape.to);
    const at::Tensor few = rows.slice(0, 0, fewest_rows(shape.rows));
    inputs_ = {rows, made_tiny(rows)};
    if (shape.rows > 1) inputs_.insert(inputs_.end(), {few, made_tiny(few)});
  }

  By of_one_row() const {
    if (!is_readable(packed_, weight_)) return By::PlainCopy;
    for (const By way : {By::OurKernel, By::OurRow}) {
      if (has_numbers(way)) return way;
    }
    return By::PlainCopy;
  }

 private:
  bool is_possible(By way) const override {
    return way == By::OneDnn || (has_kernel(way, shape_) && is_readable(packed_, weight_));
  }

  at::Tensor run(By way, const at::Tensor& rows, const at::Tensor& bias) const override {
    return way == By::PlainCopy ? product_of_plain(shape_.layout, rows, plain_, bias)
                                : product(way, shape_.layout, rows, packed_, bias);
  }

  const Shape& shape_;
  const at::Tensor weight_, plain_;
  WeightCache::Packed packed_;
};

// Which order of sums oneDNN has here. In products of a few numbers the orders may differ in none,
// so that those of a trial do not tell: these are enough. No lock, and no static of a function,
// which has one: a fork would not know it. Several threads may find the same.
By way_of_one_row(Layout layout) {
  constexpr int kUnknown = -1;
  static constinit std::array<std::atomic<int>, 2> known = {kUnknown, kUnknown};
  std::atomic<int>& found = known[layout == Layout::Addmm ? 1 : 0];
  if (found == kUnknown) {
    const Shape shape{.layout = layout,
                      .to = DType::BFloat16,
                      .rows = 1,
                      .inputs = 1021,
                      .outputs = 261,
                      .bias = true,
                      .threads = 1};
    found = static_cast<int>(ProductTrial(shape).of_one_row());
  }
  return static_cast<By>(found.load());
}

// Without a measurement: how packed weights lie shows in the products of one row.
By unmeasured(const Shape& shape) {
  for (const By way : {By::OurKernel, By::OurRow}) {
    if (has_kernel(way, shape) && way_of_one_row(shape.layout) != By::PlainCopy) return way;
  }
  return By::OneDnn;
}

Measured measure(const Shape& shape) { return ProductTrial(shape).fastest(); }

Choice shown(const Shape& shape, const Measured& measured) {
  const bool turned = shape.layout == Layout::Addmm;
  const auto first = turned ? shape.inputs : shape.outputs;
  const auto second = turned ? shape.outputs : shape.inputs;
  return {turned ? "addmm" : "linear",
          {shape.rows, shape.inputs},
          {first, second},
          shape.to,
          shape.threads,
          measured};
}

// Convolutions

// 4 numbers of each power of two, among them the usual sizes of images, are choices of their own.
std::int64_t rounded_down(std::int64_t size) {
  const auto bits = std::bit_width(static_cast<std::uint64_t>(size));
  const std::int64_t step = std::int64_t{1} << std::max(0, static_cast<int>(bits) - 3);
  return size / step * step;
}

// Never more than the call itself has: of images that differ little, the smallest; of a batch, up
// to 8; of large images a part, which takes less time and tells as much.
ConvolutionShape tried(ConvolutionShape shape) {
  constexpr std::int64_t kMostNumbers = std::int64_t{1} << 20;  // that are read, and written
  auto& images = shape.images;
  std::int64_t numbers = std::max(images[1], shape.weight[0]);
  for (std::size_t i = images.size() - 1; i >= 2; --i) {
    if (images[i] == 0) continue;
    const auto& of = shape.form.convolution;
    const std::int64_t reach = of.dilation[i - 2] * (shape.weight[i] - 1) + 1;
    const std::int64_t part = std::min(rounded_down(images[i]), kMostNumbers / numbers);
    images[i] = std::min(images[i], std::max(reach, part));
    numbers *= images[i];
  }
  const auto batch = std::bit_floor(static_cast<std::uint64_t>(images[0]));
  images[0] = std::clamp<std::int64_t>(kMostNumbers / numbers, 1,
                                       std::min<std::int64_t>(8, static_cast<std::int64_t>(batch)));
  return shape;
}

std::vector<std::int64_t> sizes_of(const std::array<std::int64_t, 5>& padded) {
  return {padded.begin(), padded.back() == 0 ? padded.end() - 1 : padded.end()};
}

class ConvolutionTrial final : public Trial {
 public:
  explicit ConvolutionTrial(const ConvolutionShape& shape)
      : shape_(shape),
        format_(shape.images.back() == 0 ? at::MemoryFormat::ChannelsLast
                                         : at::MemoryFormat::ChannelsLast3d),
        plain_(made_up(sizes_of(shape.weight), shape.to)
                   .contiguous(shape.form.channels_last ? format_ : at::MemoryFormat::Contiguous)),
        packed_(pack(plain_, shape.form, sizes_of(shape.images))) {
    if (shape.bias) bias_ = made_up({shape.weight[0]}, shape.to);
    const at::Tensor images = channels_last(made_up(sizes_of(shape.images), shape.to));
    inputs_ = {images, channels_last(made_tiny(images))};
  }

 private:
  // Of weights of few channels oneDNN pads a packed copy to many times its size.
  bool is_possible(By way) const override {
    constexpr std::size_t kMostPadding = 16384;
    return way == By::OneDnn &&
           bytes_of_copy(packed_) <= plain_.nbytes() + plain_.nbytes() / 20 + kMostPadding;
  }

  // By strides too, of which contiguous() leaves those of one pixel.
  at::Tensor channels_last(const at::Tensor& numbers) const {
    return at::empty(numbers.sizes(), numbers.options(), format_).copy_(numbers);
  }

  at::Tensor run(By way, const at::Tensor& images, const at::Tensor& bias) const override {
    const Convolution& of = shape_.form.convolution;
    if (way == By::OneDnn) return onednn_convolution(images, packed_, bias, of);
    const auto dims = static_cast<std::size_t>(images.dim() - 2);
    const auto each = [&](const Spatial& numbers) { return at::IntArrayRef(numbers.data(), dims); };
    const auto given = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
    return dims == 2 ? at::conv2d(images, plain_, given, each(of.stride), each(of.padding),
                                  each(of.dilation), of.groups)
                     : at::conv3d(images, plain_, given, each(of.stride), each(of.padding),
                                  each(of.dilation), of.groups);
  }

  const ConvolutionShape& shape_;
  const at::MemoryFormat format_;
  const at::Tensor plain_, packed_;
};

By unmeasured(const ConvolutionShape&) { return By::OneDnn; }

Measured measure(const ConvolutionShape& shape) { return ConvolutionTrial(shape).fastest(); }

Choice shown(const ConvolutionShape& shape, const Measured& measured) {
  return {shape.images.back() == 0 ? "conv2d" : "conv3d",
          sizes_of(shape.images),
          sizes_of(shape.weight),
          shape.to,
          shape.threads,
          measured};
}

// Both

// In nobody's profile, and with an error of nobody: who runs out of memory here goes on without.
template <typename OfShape>
Measured found_out(const OfShape& shape) {
  const at::DisableRecordFunctionGuard unseen;
  const c10::InferenceMode no_grad;
  try {
    return measures ? measure(shape) : Measured{unmeasured(shape), {}};
  } catch (const std::exception&) {  // oneDNN has errors of its own
  }
  return {};
}

template <typename OfShape>
By chosen_of(const OfShape& shape) {
  const OfShape key = tried(shape);
  auto& choices = process_wide<Choices<OfShape>>();
  {
    const std::lock_guard lock(choices.mutex);
    const auto found = choices.made.find(key);
    if (found != choices.made.end()) return found->second.by;
  }
  const Measured measured = found_out(key);
  const std::lock_guard lock(choices.mutex);
  return choices.made.try_emplace(key, measured).first->second.by;
}

template <typename OfShape>
void show_all(std::vector<Choice>& all) {
  auto& choices = process_wide<Choices<OfShape>>();
  const std::lock_guard lock(choices.mutex);
  for (const auto& [shape, measured] : choices.made) all.push_back(shown(shape, measured));
}

}  // namespace

By chosen(const Shape& shape) { return chosen_of(shape); }

By chosen(const ConvolutionShape& shape) { return chosen_of(shape); }

void measure_choices(bool on) {
  if (measures.exchange(on) == on) return;
  process_wide<Choices<Shape>>().forget();
  process_wide<Choices<ConvolutionShape>>().forget();
}

std::vector<Choice> choices() {
  std::vector<Choice> all;
  show_all<Shape>(all);
  show_all<ConvolutionShape>(all);
  return all;
}

}  // namespace habana_mp
