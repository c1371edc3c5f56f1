#include "cast/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace habana_mp {
namespace {

// Of Linux 6.1; older C libraries lack the name, and older systems refuse it.
constexpr int kCollapse = 25;
constexpr std::size_t kSmallestPage = 4096;

// All of it: a page that is not there yet would be made, and take memory.
bool is_there(std::byte* page) {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::array<unsigned char, kHugePage / kSmallestPage> there{};
  if (mincore(page, kHugePage, there.data()) != 0) return false;
  return std::ranges::all_of(std::span(there).first(kHugePage / size),
                             [](unsigned char each) { return (each & 1) != 0; });
}

}  // namespace

void move_to_huge_pages(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = begin + memory.size();
  for (std::uintptr_t at = begin / kHugePage * kHugePage; at < end; at += kHugePage) {
    auto* page = reinterpret_cast<std::byte*>(at);
    if (is_there(page)) madvise(page, kHugePage, kCollapse);
  }
}

}  // namespace habana_mp
