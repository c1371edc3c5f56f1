// From lanes to kernels: walks arrays of any length in the blocks of an instruction set.
//
// `Lanes` holds Lanes::kBlock floats in registers and has load<From>(source), store<To>(target)
// and, where Lanes::kStreams, stream<To>(target) with a target aligned to a cache line.
//
// Whoever includes this is compiled for a CPU of its own. So all here and in Lanes is local to the
// file, and no function of the standard library is used that may be shared with files compiled for
// every CPU: the linker keeps one copy of such a function, and it may be the wrong one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cast_kernels.h"
#include "kernels/kernel_table.h"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t kCacheLine = 64;

constexpr std::uint32_t kSign = 0x80000000, kInfinity = 0x7f800000, kQuiet = 0x00400000;

// The upper half, rounded to nearest even; a carry out of the largest finite value is infinity.
inline std::uint16_t to_bfloat16(std::uint32_t bits) {
  const std::uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  const std::uint32_t result = (bits & ~kSign) > kInfinity ? bits | kQuiet : rounded;
  return static_cast<std::uint16_t>(result >> 16);
}

// What Lanes know to load and store: a dtype that becomes eligible has to be added to each of them.
template <DType kDType>
constexpr bool kHasLanes =
    kDType == DType::Float16 || kDType == DType::BFloat16 || kDType == DType::Float32;

template <class Lanes, DType From, DType To>
void cast_block(const std::byte* source, std::byte* target) {
  Lanes::template load<From>(source).template store<To>(target);
}

// Fewer elements than a block has, by way of whole blocks on the stack.
template <class Lanes, DType From, DType To>
void cast_short(const std::byte* source, std::byte* target, std::size_t count) {
  constexpr std::size_t kFrom = element_size(From), kTo = element_size(To);
  alignas(kCacheLine) std::byte whole_source[Lanes::kBlock * kFrom] = {};
  alignas(kCacheLine) std::byte whole_target[Lanes::kBlock * kTo];
  std::memcpy(whole_source, source, count * kFrom);
  cast_block<Lanes, From, To>(whole_source, whole_target);
  std::memcpy(target, whole_target, count * kTo);
}

template <class Lanes, DType From, DType To, Stores kStores>
void cast_array(const void* from, void* to, std::size_t count) {
  static_assert(kHasLanes<From> && kHasLanes<To>, "an eligible dtype that no kernel can cast");
  constexpr std::size_t kBlock = Lanes::kBlock, kFrom = element_size(From), kTo = element_size(To);
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  if (count < kBlock) {
    if (count != 0) cast_short<Lanes, From, To>(source, target, count);
    return;
  }
  std::size_t i = 0;
  // The first block, wherever it lies, covers what stands before the first whole cache line: of a
  // target that is streamed, else of the side with more bytes, which crosses lines more often.
  constexpr bool kBySource = kStores == Stores::Cached && kFrom > kTo;
  constexpr std::size_t kAligned = kBySource ? kFrom : kTo;
  constexpr std::size_t kStep = kBlock > kCacheLine / kAligned ? kBlock : kCacheLine / kAligned;
  const std::size_t beyond_line =
      reinterpret_cast<std::uintptr_t>(kBySource ? source : target) % kCacheLine;
  const std::size_t head = (kCacheLine - beyond_line) % kCacheLine;
  if (head % kAligned == 0 && count >= 2 * kStep) {
    for (; i * kAligned < head; i += kBlock) {
      cast_block<Lanes, From, To>(source + i * kFrom, target + i * kTo);
    }
    i = head / kAligned;
    if constexpr (kStores == Stores::Streaming) {
      for (; i + kBlock <= count; i += kBlock) {
        Lanes::template load<From>(source + i * kFrom).template stream<To>(target + i * kTo);
      }
      Lanes::fence();
    }
  }
  for (; i + kBlock <= count; i += kBlock) {
    cast_block<Lanes, From, To>(source + i * kFrom, target + i * kTo);
  }
  // The last block, again in part: source and target do not overlap, so writing twice is harmless.
  if (i != count) {
    i = count - kBlock;
    cast_block<Lanes, From, To>(source + i * kFrom, target + i * kTo);
  }
}

// All pairs of eligible dtypes.
template <class Lanes, Stores kStores>
constexpr void fill(Kernel (&kernels)[kDTypeCount][kDTypeCount]) {
  const auto place = [&]<std::size_t kFrom, std::size_t kTo>() {
    if constexpr (kDTypes[kFrom].eligible && kDTypes[kTo].eligible && kFrom != kTo) {
      kernels[kFrom][kTo] = cast_array<Lanes, kDTypes[kFrom].dtype, kDTypes[kTo].dtype, kStores>;
    }
  };
  [&]<std::size_t... kPairs>(std::index_sequence<kPairs...>) {
    (place.template operator()<kPairs / kDTypeCount, kPairs % kDTypeCount>(), ...);
  }(std::make_index_sequence<kDTypeCount * kDTypeCount>());
}

template <class Lanes>
constexpr KernelTable table_of() {
  KernelTable table{};
  fill<Lanes, Stores::Cached>(table.cached);
  fill<Lanes, Lanes::kStreams ? Stores::Streaming : Stores::Cached>(table.streaming);
  return table;
}

}  // namespace
}  // namespace habana_mp::kernels
