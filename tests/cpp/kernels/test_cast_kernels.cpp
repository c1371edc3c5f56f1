// Every variant of the cast kernels that this CPU runs, bit for bit against cast_reference.h; that
// nothing outside is touched; which variant runs. The last two, all 2^32 float32, take minutes:
// make exhaustive runs them.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cfenv>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cast_reference.h"
#include "kernels/cast_kernels.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace habana_mp;
using kernels::Stores;
using kernels::Variant;

namespace {

constexpr DType F16 = DType::Float16, BF16 = DType::BFloat16, F32 = DType::Float32;
constexpr struct {
  DType from, to;
} kCasts[] = {{F32, BF16}, {BF16, F32}, {F32, F16}, {F16, F32}, {BF16, F16}, {F16, BF16}};
constexpr Stores kStores[] = {Stores::Cached, Stores::Streaming};

struct Forced {
  explicit Forced(Variant variant) { kernels::force(variant); }
  ~Forced() { kernels::reset(); }
};

std::string describe(DType from, DType to, Stores stores = Stores::Cached) {
  return std::string(kernels::variant_name(kernels::active())) + ": " + dtype_name(from) + " -> " +
         dtype_name(to) + (stores == Stores::Streaming ? ", streaming" : "");
}

// One failed check for an array of wrong values, which names the first.
template <typename Expected>
void check_bits(DType from, DType to, const void* source, const void* target, std::size_t count,
                const Expected& expected) {
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (element(to, target, i) != expected[i] && wrong++ == 0) first = i;
  }
  if (wrong == 0) return;
  std::ostringstream text;
  text << describe(from, to) << std::hex << ": of 0x" << element(from, source, first) << " got 0x"
       << element(to, target, first) << ", expected 0x" << expected[first] << std::dec << "; "
       << wrong << " of " << count << " are wrong";
  FAIL_CHECK(text.str());
}

template <typename Bits>
void check_values(DType from, DType to, const std::vector<Bits>& source) {
  std::vector<std::uint32_t> expected;
  expected.reserve(source.size());
  for (const Bits bits : source) expected.push_back(reference_cast(from, to, bits));
  std::vector<std::uint32_t> target(source.size());
  for (const Variant variant : kernels::available()) {
    const Forced forced(variant);
    for (const Stores stores : kStores) {
      kernels::kernel(from, to, stores)(source.data(), target.data(), source.size());
      check_bits(from, to, source.data(), target.data(), source.size(), expected);
    }
  }
}

void check_all_floats(DType to) {
  std::vector<std::uint32_t> chunk(1 << 16);  // in cache
  for (std::uint32_t high = 0; high < 1 << 16; ++high) {
    for (std::uint32_t low = 0; low < 1 << 16; ++low) chunk[low] = high << 16 | low;
    check_values(F32, to, chunk);
  }
}

std::vector<std::uint16_t> all_low() {
  std::vector<std::uint16_t> values(1 << 16);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  return values;
}

// Every exponent and sign with mantissas around what the low types keep and round.
std::vector<std::uint32_t> interesting_floats() {
  std::vector<std::uint32_t> mantissas;
  for (int bit = 0; bit <= 23; ++bit) {
    const std::uint32_t power = 1u << bit;
    for (const std::uint32_t base : {power, 3 * power, 0x800000 - power, 0x800000 - 3 * power}) {
      for (const std::uint32_t step : {0u, 1u, 0xffffffffu}) {
        if (base + step < 0x800000) mantissas.push_back(base + step);
      }
    }
  }
  mantissas.push_back(0);
  std::vector<std::uint32_t> values;
  for (std::uint32_t high = 0; high < 512; ++high) {
    for (const std::uint32_t mantissa : mantissas) values.push_back(high << 23 | mantissa);
  }
  return values;
}

// Where rounding to `low` turns over: halfway between each value and the next, with both
// neighbours.
std::vector<std::uint32_t> ties_of(DType low) {
  const std::vector<double>& values = magnitudes(low);
  std::vector<std::uint32_t> ties;
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const std::uint32_t tie = nearest_magnitude(F32, (values[i] + values[i + 1]) / 2);
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      ties.insert(ties.end(), {sign | (tie - 1), sign | tie, sign | (tie + 1)});
    }
  }
  return ties;
}

// Memory between two pages that must not be touched.
class GuardedPages {
 public:
  explicit GuardedPages(std::size_t bytes)
      : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
        inner_((bytes + page_ - 1) / page_ * page_),
        memory_(static_cast<std::byte*>(
            mmap(nullptr, inner_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(memory_ != MAP_FAILED);
    REQUIRE(mprotect(memory_ + page_, inner_, PROT_READ | PROT_WRITE) == 0);
  }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;
  ~GuardedPages() { munmap(memory_, inner_ + 2 * page_); }

  std::byte* first(std::size_t) const { return memory_ + page_; }
  std::byte* last(std::size_t bytes) const { return memory_ + page_ + inner_ - bytes; }

 private:
  std::size_t page_, inner_;
  std::byte* memory_;
};

}  // namespace

TEST_CASE("the reference itself, by values that anyone can work out") {
  CHECK(reference_cast(F32, BF16, 0x3f800000) == 0x3f80);  // 1
  CHECK(reference_cast(F32, BF16, 0x3f808000) == 0x3f80);  // a tie, down to even
  CHECK(reference_cast(F32, BF16, 0x3f818000) == 0x3f82);  // a tie, up to even
  CHECK(reference_cast(F32, BF16, 0x7f7fffff) == 0x7f80);  // the largest overflows
  CHECK(reference_cast(F32, BF16, 0x80000001) == 0x8000);
  CHECK(reference_cast(F32, F16, 0x477fe000) == 0x7bff);  // 65504
  CHECK(reference_cast(F32, F16, 0x477fefff) == 0x7bff);
  CHECK(reference_cast(F32, F16, 0x477ff000) == 0x7c00);  // 65520
  CHECK(reference_cast(F32, F16, 0x33000000) == 0x0000);  // 2^-25, a tie with zero
  CHECK(reference_cast(F32, F16, 0x33000001) == 0x0001);
  CHECK(reference_cast(F32, F16, 0xc0490fdb) == 0xc248);  // -pi
  CHECK(reference_cast(F32, F16, 0xff800001) == 0xfe00);
  CHECK(reference_cast(F16, F32, 0x0001) == 0x33800000);  // 2^-24
  CHECK(reference_cast(F16, F32, 0x03ff) == 0x387fc000);
  CHECK(reference_cast(F16, F32, 0x7d55) == 0x7feaa000);
  CHECK(reference_cast(BF16, F32, 0x0001) == 0x00010000);
  CHECK(reference_cast(BF16, F32, 0xff81) == 0xffc10000);
  CHECK(reference_cast(BF16, F16, 0x4780) == 0x7c00);  // 65536
  CHECK(reference_cast(F16, BF16, 0x0001) == 0x3380);
}

TEST_CASE("all 2^16 low values") {
  for (const auto [from, to] : kCasts) {
    if (from != F32) check_values(from, to, all_low());
  }
}

TEST_CASE("float32: every exponent, sign and interesting mantissa") {
  for (const DType to : {BF16, F16}) check_values(F32, to, interesting_floats());
}

TEST_CASE("float32: every tie of the low types and its neighbours") {
  for (const DType to : {BF16, F16}) {
    for (const DType low : {BF16, F16}) check_values(F32, to, ties_of(low));
  }
}

TEST_CASE("float32: 2^22 random patterns") {
  std::mt19937 random(20230607);
  std::vector<std::uint32_t> values(1 << 22);
  for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(random());
  for (const DType to : {BF16, F16}) check_values(F32, to, values);
}

TEST_CASE("one subnormal or NaN, in any place of a block of others") {
  for (const std::uint32_t odd :
       {0x00000001u, 0x807fffffu, 0x00408000u, 0x7f800001u, 0xffffffffu}) {
    std::vector<std::uint32_t> values;
    for (std::size_t place = 0; place < 64; ++place) {
      for (std::size_t i = 0; i < 64; ++i) values.push_back(i == place ? odd : 0x3f808000);
    }
    for (const DType to : {BF16, F16}) check_values(F32, to, values);
  }
}

TEST_CASE("any count at any alignment: all inside is cast, nothing outside is written") {
  constexpr std::size_t kMostElements = 130, kMargin = 128;
  constexpr std::byte kCanary{0xa5};
  std::vector<std::byte> source(kMostElements * 4 + 2 * kMargin),
      target(kMostElements * 4 + 2 * kMargin), expected(kMostElements * 4), in(kMostElements * 4);
  std::mt19937 random(5);
  for (const auto [from, to] : kCasts) {
    const std::size_t from_size = kernels::element_size(from), to_size = kernels::element_size(to);
    for (std::size_t i = 0; i < kMostElements; ++i) {
      const std::uint32_t bits = static_cast<std::uint32_t>(random());
      std::memcpy(in.data() + i * from_size, &bits, from_size);
      const std::uint32_t result = reference_cast(from, to, element(from, in.data(), i));
      std::memcpy(expected.data() + i * to_size, &result, to_size);
    }
    for (const Variant variant : kernels::available()) {
      const Forced forced(variant);
      for (const Stores stores : kStores) {
        const kernels::Kernel kernel = kernels::kernel(from, to, stores);
        std::size_t wrong = 0;
        for (std::size_t offset = 0; offset < 64; ++offset) {
          std::byte* const start = source.data() + kMargin + offset;
          std::memcpy(start, in.data(), kMostElements * from_size);
          // All pairs of alignments come up in turn.
          std::byte* const result = target.data() + kMargin + (offset * 37 + 11) % 64;
          std::byte* const aligned = target.data() + kMargin + offset;
          for (std::size_t count = 0; count <= kMostElements; ++count) {
            for (std::byte* const to_start : {result, aligned}) {
              std::fill(target.begin(), target.end(), kCanary);
              kernel(start, to_start, count);
              std::byte* const end = to_start + count * to_size;
              const auto is_canary = [](std::byte byte) { return byte == kCanary; };
              const bool inside = std::memcmp(to_start, expected.data(), count * to_size) == 0;
              const bool outside = std::all_of(target.data(), to_start, is_canary) &&
                                   std::all_of(end, target.data() + target.size(), is_canary);
              if (!inside || !outside) {
                if (wrong++ == 0) MESSAGE("offset " << offset << ", count " << count);
              }
            }
          }
        }
        const std::string what = describe(from, to, stores);
        CHECK_MESSAGE(wrong == 0, what);
      }
    }
  }
}

TEST_CASE(
    "nothing outside is read: source and target end at, or begin after, a page of no access") {
  const GuardedPages source(4096 * 4), target(4096 * 4);
  std::vector<std::size_t> counts{255, 256, 1000, 4096};
  for (std::size_t count = 0; count <= 130; ++count) counts.push_back(count);
  for (const auto [from, to] : kCasts) {
    for (const Variant variant : kernels::available()) {
      const Forced forced(variant);
      for (const Stores stores : kStores) {
        const kernels::Kernel kernel = kernels::kernel(from, to, stores);
        for (const std::size_t count : counts) {
          for (const auto place : {&GuardedPages::first, &GuardedPages::last}) {
            kernel((source.*place)(count * kernels::element_size(from)),
                   (target.*place)(count * kernels::element_size(to)), count);
          }
        }
      }
    }
  }
}

TEST_CASE("an empty array has no address") {
  for (const auto [from, to] : kCasts) kernels::kernel(from, to)(nullptr, nullptr, 0);
}

#if defined(__x86_64__)
TEST_CASE("the thread's rounding and flushing of subnormals do not matter") {
  constexpr unsigned kFlushToZero = 0x8000, kSubnormalsAreZero = 0x0040;
  const std::vector<std::uint32_t> floats = interesting_floats();
  const std::vector<std::uint16_t> lows = all_low();
  std::vector<std::uint32_t> plain(floats.size()), changed(floats.size());
  for (const auto [from, to] : kCasts) {
    const void* source = from == F32 ? static_cast<const void*>(floats.data()) : lows.data();
    const std::size_t count = from == F32 ? floats.size() : lows.size();
    for (const Variant variant : kernels::available()) {
      const Forced forced(variant);
      const std::string what = describe(from, to);
      const kernels::Kernel kernel = kernels::kernel(from, to);
      kernel(source, plain.data(), count);
      for (const int rounding : {FE_UPWARD, FE_TOWARDZERO}) {
        const unsigned before = _mm_getcsr();
        std::fesetround(rounding);
        _mm_setcsr(_mm_getcsr() | kFlushToZero | kSubnormalsAreZero);
        kernel(source, changed.data(), count);
        std::fesetround(FE_TONEAREST);
        _mm_setcsr(before);
        CHECK_MESSAGE(plain == changed, what);
      }
    }
  }
}
#endif

TEST_CASE("which variant runs") {
  const auto available = kernels::available();
  REQUIRE(!available.empty());
  CHECK(available.front() == Variant::Scalar);

  SUBCASE("the fastest, unless one is forced") {
    unsetenv("HABANA_MP_CAST_VARIANT");
    kernels::reset();
    CHECK(kernels::active() == available.back());
    for (const Variant variant : available) {
      kernels::force(variant);
      CHECK(kernels::active() == variant);
    }
  }
  SUBCASE("what the environment names") {
    for (const Variant variant : available) {
      setenv("HABANA_MP_CAST_VARIANT", kernels::variant_name(variant), 1);
      kernels::reset();
      CHECK(kernels::active() == variant);
    }
    setenv("HABANA_MP_CAST_VARIANT", "", 1);
    kernels::reset();
    CHECK(kernels::active() == available.back());
  }
  SUBCASE("an unknown name is told, with those that there are") {
    setenv("HABANA_MP_CAST_VARIANT", "avx1024", 1);
    kernels::reset();
    CHECK_THROWS_WITH_AS(kernels::active(),
                         doctest::Contains("HABANA_MP_CAST_VARIANT=avx1024 is not a variant. "
                                           "This CPU runs scalar"),
                         std::invalid_argument);
    CHECK_THROWS_AS(kernels::kernel(F32, BF16), std::invalid_argument);
  }
  SUBCASE("what the CPU lacks is told") {
#if defined(__x86_64__)
    constexpr Variant kOther = Variant::Neon;
#else
    constexpr Variant kOther = Variant::Avx2;
#endif
    setenv("HABANA_MP_CAST_VARIANT", kernels::variant_name(kOther), 1);
    kernels::reset();
    CHECK_THROWS_WITH_AS(
        kernels::active(),
        doctest::Contains(" is a variant that this CPU cannot run. It runs scalar"),
        std::invalid_argument);
    CHECK_THROWS_AS(kernels::force(kOther), std::invalid_argument);
  }
  unsetenv("HABANA_MP_CAST_VARIANT");
  kernels::reset();
}

TEST_CASE("what is no cast has no kernel") {
  CHECK_THROWS_WITH_AS(kernels::kernel(F32, F32), "no cast from float32 to float32",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(kernels::kernel(DType::Float64, BF16), "no cast from float64 to bfloat16",
                       std::invalid_argument);
  CHECK_THROWS_AS(kernels::kernel(DType::Other, DType::Other), std::invalid_argument);
}

TEST_CASE("large casts are streamed, counted in bytes read and written") {
  CHECK(kernels::stores_for(F32, BF16, 0) == Stores::Cached);
  CHECK(kernels::stores_for(F32, BF16, 1 << 20) == Stores::Cached);
  CHECK(kernels::stores_for(F16, BF16, 3 << 20) == Stores::Cached);
  CHECK(kernels::stores_for(F32, BF16, 3 << 20) == Stores::Streaming);
  CHECK(kernels::stores_for(F32, BF16, 3 << 20, /*several_threads=*/true) == Stores::Cached);
  CHECK(kernels::stores_for(F32, BF16, 6 << 20, /*several_threads=*/true) == Stores::Streaming);
}

TEST_CASE("all 2^32 float32 to bfloat16" * doctest::skip()) { check_all_floats(BF16); }

TEST_CASE("all 2^32 float32 to float16" * doctest::skip()) { check_all_floats(F16); }
