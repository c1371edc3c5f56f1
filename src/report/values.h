// What is known of the numbers that calls compute: their error against float32, and the range that
// they lie in. Sums, so that calls add up. It must not know torch.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "policy/decide.h"
#include "policy/dtype.h"

namespace habana_mp::report {

// What a report has measured of the numbers of calls.
struct Measure {
  bool errors = false;   // of what ran in a low dtype, against float32
  bool what_if = false;  // of what ran in float32, had it run in the low dtype; and ranges
  DType low = DType::BFloat16;
  unsigned formats = 0;  // of kFormats, a bit each: what could run in them
};

// The lists of ops in 8 bits, as which a call is run once more where that is asked for.
inline constexpr std::array kFormats = {Action::WeightInt8, Action::Int8};

// How the values of a field of two parts make one. Seconds: a sum of nanoseconds, which reports
// have in seconds; MostSeconds: the largest of these.
enum class Adds : std::uint8_t { Sum, Largest, Smallest, Seconds, MostSeconds };

// A field of a struct, by the name that Python has for it: in reports that of
// habana_mp/_report/data/.
template <typename Owner, typename T>
struct Field {
  const char* name;
  T Owner::* member;
  Adds adds = Adds::Sum;
};
// As in op_list.h.
template <typename Owner, typename T>
Field(const char*, T Owner::*, Adds = Adds::Sum) -> Field<Owner, T>;

// The fields of a struct, where they are declared: a tuple of Field.
template <typename T>
inline constexpr std::nullptr_t kFields = nullptr;

// Of numbers that were computed in some dtype, against the same computed in float32 from the same
// inputs.
struct Error {
  double squares = 0;            // of the differences
  double reference_squares = 0;  // of the float32 numbers
  double largest = 0;            // difference
  double reference_largest = 0;
  std::uint64_t lost = 0;  // not finite, where float32 is

  void add(const Error& other);
};
template <>
inline constexpr auto kFields<Error> = std::tuple{
    Field{"squares", &Error::squares}, Field{"reference_squares", &Error::reference_squares},
    Field{"largest", &Error::largest, Adds::Largest},
    Field{"reference_largest", &Error::reference_largest, Adds::Largest},
    Field{"lost", &Error::lost}};

// Of numbers in float32: how many there are, and how many of them a narrower dtype does not hold.
// The float8 dtypes hold them scaled, so that the largest of a tensor is the largest of the dtype.
struct Range {
  std::uint64_t numbers = 0;
  double largest = 0;
  double smallest = std::numeric_limits<double>::infinity();  // but for zeros
  std::uint64_t over_float16 = 0;
  std::uint64_t under_float16 = 0;  // it becomes zero
  std::uint64_t under_e4m3 = 0;
  std::uint64_t under_e5m2 = 0;

  void add(const Range& other);
};
template <>
inline constexpr auto kFields<Range> =
    std::tuple{Field{"numbers", &Range::numbers},
               Field{"largest", &Range::largest, Adds::Largest},
               Field{"smallest", &Range::smallest, Adds::Smallest},
               Field{"over_float16", &Range::over_float16},
               Field{"under_float16", &Range::under_float16},
               Field{"under_e4m3", &Range::under_e4m3},
               Field{"under_e5m2", &Range::under_e5m2}};

// Of additions: how many numbers are added that are not zero, and how many of them are below half
// of a ulp of what they are added to in a dtype, so that they are lost there. A scale for the whole
// tensor would change nothing.
struct Absorbed {
  std::uint64_t sums = 0;
  std::uint64_t lost = 0;  // in the low dtype that the result has
  std::uint64_t bfloat16 = 0;
  std::uint64_t float16 = 0;
  std::uint64_t e4m3 = 0;
  std::uint64_t e5m2 = 0;

  void add(const Absorbed& other);
};
template <>
inline constexpr auto kFields<Absorbed> =
    std::tuple{Field{"sums", &Absorbed::sums},         Field{"lost", &Absorbed::lost},
               Field{"bfloat16", &Absorbed::bfloat16}, Field{"float16", &Absorbed::float16},
               Field{"e4m3", &Absorbed::e4m3},         Field{"e5m2", &Absorbed::e5m2}};

// Why the error of a call is not known. By these names in reports: habana_mp/_report/numbers.py
// has the texts.
enum class Unmeasured : std::uint8_t {
  None,
  Random,      // it draws random numbers
  Writes,      // it writes to more than one tensor, or changes something that is no result
  Reserve,     // what its forward keeps in reserve is for one run, in one dtype
  Library,     // it is the op of another library, or its kernel is Python
  Collective,  // other processes wait for it
  Kernel,      // it has no kernel for the other dtype
  Tensors,     // sparse tensors, subclasses, float64
  Memory,      // its share alone: too much waits for gradients already
  Sizes,       // the run that it is compared with was given tensors of other sizes
  Thread,      // another thread than the report's has called it
};
inline constexpr std::array<const char*, 11> kUnmeasuredNames = {
    "none",   "random",  "writes", "reserve", "library", "collective",
    "kernel", "tensors", "memory", "sizes",   "thread"};

// The change of a loss that the error of a call makes, to first order: the sum of gradient *
// difference, which a backward pass has brought.
struct Change {
  int pass = 0;
  std::uint32_t loss = 0;  // the line that has called backward, by number_of()
  double ran = 0;
  double low = 0;
  double rounding = 0;  // that of float32 results which are rounded, and nothing else
  std::optional<std::size_t> format{};  // of kFormats: `low` is of it, and the others are nothing
};

// A sum of changes in all passes, and the sum of the squares of those in each.
struct PassSums {
  double change = 0;
  double squares = 0;
  int pass = -1;
  double last = 0;  // of that pass

  void add(int of_pass, double part) {
    if (pass != of_pass) last = 0;
    pass = of_pass;
    squares += part * (2 * last + part);
    last += part;
    change += part;
  }
};
template <>
inline constexpr auto kFields<PassSums> =
    std::tuple{Field{"change", &PassSums::change}, Field{"squares", &PassSums::squares}};

inline std::uint64_t hash(std::uint64_t number) {  // the last step of splitmix64
  number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
  number = (number ^ number >> 27) * 0x94d049bb133111ebu;
  return number ^ number >> 31;
}

// The changes of one loss, or of random sums of the outputs, with the sign of each pass: errors of
// two sites that cancel, or add up, do so in each. Behind the first kMostPasses a pass is added to
// an earlier one with a random sign, the same for all sites: squares of sums over sites stay right
// on average.
struct Signed {
  static constexpr std::size_t kMostPasses = 128;
  using Passes = std::vector<double>;

  Passes ran, low, rounding;
  std::array<Passes, kFormats.size()> formats;

  void add(std::uint64_t pass, const Change& change) {
    const double sign = pass >= kMostPasses && (hash(pass) & 1u) != 0 ? -1 : 1;
    const auto add_to = [&](Passes& passes, double part) {
      const std::size_t place = pass % kMostPasses;
      if (part == 0) return;
      if (passes.size() <= place) passes.resize(place + 1);
      passes[place] += sign * part;
    };
    if (change.format) return add_to(formats[*change.format], change.low);
    add_to(ran, change.ran);
    add_to(low, change.low);
    add_to(rounding, change.rounding);
  }
};

// The changes of one loss. Their squares are those of the sum in each backward pass: what cancels
// in one pass adds up in the next.
struct Changes {
  std::uint64_t count = 0;
  double ran = 0;
  double low = 0;
  double squares_ran = 0;
  double squares_low = 0;
  double rounding = 0;  // of a random sum alone: no report has it
  double squares_rounding = 0;
};
template <>
inline constexpr auto kFields<Changes> =
    std::tuple{Field{"changes", &Changes::count},
               Field{"change", &Changes::ran},
               Field{"change_low", &Changes::low},
               Field{"squares", &Changes::squares_ran},
               Field{"squares_low", &Changes::squares_low},
               Field{"squares_rounding", &Changes::squares_rounding}};

// Of calls that were run in one of kFormats, too.
struct InFormat {
  std::uint64_t calls = 0;
  Error error;
  std::uint64_t ns = 0;  // of these runs, with a copy of the weight that was made before
  // Of what ran low, the same runs in the low dtype: as inference has them, also in a training
  // step.
  std::uint64_t lower_ns = 0;
  double projected = 0;

  void add(const InFormat& other);
};
template <>
inline constexpr auto kFields<InFormat> =
    std::tuple{Field{"calls", &InFormat::calls}, Field{"error", &InFormat::error},
               Field{"seconds", &InFormat::ns, Adds::Seconds},
               Field{"lower_seconds", &InFormat::lower_ns, Adds::Seconds},
               Field{"projected", &InFormat::projected}};

struct Values {
  std::uint64_t calls = 0;  // that were measured
  // Calls that were not, and ops of their backward, by the reason.
  std::array<std::uint64_t, kUnmeasuredNames.size()> unmeasured{};
  std::array<std::uint64_t, kUnmeasuredNames.size()> unmeasured_backward{};
  Error ran;                   // as the call ran
  Error low;                   // as it runs, or would run, in the low dtype
  Range range;                 // of its results in float32
  Absorbed absorbed;           // of an addition
  std::uint64_t ran_ns = 0;    // of the calls, with casts that are made inside of them
  std::uint64_t other_ns = 0;  // of the runs in the other dtype: in float32, or in the low one
  std::uint64_t ran_longest_ns = 0;  // of one call
  std::uint64_t other_longest_ns = 0;
  std::uint64_t backward_calls = 0;
  Error backward;  // of the ops of its backward
  // The same times of these, where they ran low.
  std::uint64_t backward_ran_ns = 0;
  std::uint64_t backward_other_ns = 0;
  std::uint64_t backward_ran_longest_ns = 0;
  std::uint64_t backward_other_longest_ns = 0;
  // Of random sums of the outputs, in place of a loss: the squares of their changes.
  std::uint64_t projections = 0;
  double projected_ran = 0;
  double projected_low = 0;
  double projected_rounding = 0;
  // What it has chosen by numbers that are off, and what float32 would choose otherwise.
  std::uint64_t choices = 0;
  std::uint64_t flipped = 0;
  std::array<InFormat, kFormats.size()> formats{};

  void leave_out(Unmeasured why, bool of_backward = false) {
    ++(of_backward ? unmeasured_backward : unmeasured)[static_cast<std::size_t>(why)];
  }

  void add(const Values& other);
};
template <>
inline constexpr auto kFields<Values> = std::tuple{
    Field{"calls", &Values::calls},
    Field{"ran", &Values::ran},
    Field{"low", &Values::low},
    Field{"range", &Values::range},
    Field{"absorbed", &Values::absorbed},
    Field{"ran_seconds", &Values::ran_ns, Adds::Seconds},
    Field{"other_seconds", &Values::other_ns, Adds::Seconds},
    Field{"ran_longest", &Values::ran_longest_ns, Adds::MostSeconds},
    Field{"other_longest", &Values::other_longest_ns, Adds::MostSeconds},
    Field{"backward_calls", &Values::backward_calls},
    Field{"backward", &Values::backward},
    Field{"backward_ran_seconds", &Values::backward_ran_ns, Adds::Seconds},
    Field{"backward_other_seconds", &Values::backward_other_ns, Adds::Seconds},
    Field{"backward_ran_longest", &Values::backward_ran_longest_ns, Adds::MostSeconds},
    Field{"backward_other_longest", &Values::backward_other_longest_ns, Adds::MostSeconds},
    Field{"projections", &Values::projections},
    Field{"projected", &Values::projected_ran},
    Field{"projected_low", &Values::projected_low},
    Field{"projected_rounding", &Values::projected_rounding},
    Field{"choices", &Values::choices},
    Field{"flipped", &Values::flipped}};

template <typename T>
void add_fields(T& into, const T& other) {
  const auto add = []<typename U>(U& sum, const U& more, Adds adds) {
    if constexpr (!std::is_arithmetic_v<U>) {
      add_fields(sum, more);
    } else {
      const bool largest = adds == Adds::Largest || adds == Adds::MostSeconds;
      sum = largest                  ? std::max(sum, more)
            : adds == Adds::Smallest ? std::min(sum, more)
                                     : sum + more;
    }
  };
  std::apply(
      [&](const auto&... field) {
        (add(into.*field.member, other.*field.member, field.adds), ...);
      },
      kFields<T>);
}

inline void Error::add(const Error& other) { add_fields(*this, other); }
inline void Range::add(const Range& other) { add_fields(*this, other); }
inline void Absorbed::add(const Absorbed& other) { add_fields(*this, other); }
inline void InFormat::add(const InFormat& other) { add_fields(*this, other); }
inline void Values::add(const Values& other) {
  add_fields(*this, other);
  for (std::size_t i = 0; i < formats.size(); ++i) formats[i].add(other.formats[i]);
  for (std::size_t i = 0; i < unmeasured.size(); ++i) {
    unmeasured[i] += other.unmeasured[i];
    unmeasured_backward[i] += other.unmeasured_backward[i];
  }
}

}  // namespace habana_mp::report
