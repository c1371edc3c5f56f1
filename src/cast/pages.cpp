#include "cast/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <string>

namespace habana_mp {
namespace {

// Of Linux 6.1; older C libraries lack the name, and older systems refuse it.
constexpr int kCollapse = 25;

// Linux would collapse pages also where the administrator wants none of them.
bool may_use_huge_pages() {
  static const bool may = [] {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string modes;
    return std::getline(file, modes) && modes.find("[never]") == std::string::npos &&
           page_size() == 4096;
  }();
  return may;
}

}  // namespace

std::uintptr_t page_size() {
  static const auto size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::optional<bool> every_page(std::span<const std::byte> pages, c10::function_ref<bool(Page)> is) {
  // Documentation/admin-guide/mm/pagemap.rst of Linux.
  constexpr auto kBit = [](std::uint64_t entry, int bit) { return (entry >> bit & 1) != 0; };
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::array<std::uint64_t, 512> entries{};
  auto at = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(pages.data()) / page_size() *
                               sizeof(std::uint64_t));
  std::optional<bool> all = true;
  for (std::size_t left = pages.size() / page_size(); left > 0 && all == true;) {
    const std::size_t count = std::min(left, entries.size());
    const ssize_t bytes = pread(file, entries.data(), count * sizeof(std::uint64_t), at);
    if (bytes < static_cast<ssize_t>(sizeof(std::uint64_t))) {
      all = std::nullopt;
      break;
    }
    const auto read = static_cast<std::size_t>(bytes) / sizeof(std::uint64_t);
    all = std::all_of(entries.begin(), entries.begin() + read, [&](std::uint64_t page) {
      return is({.present = kBit(page, 63),
                 .swapped = kBit(page, 62),
                 .of_file = kBit(page, 61),
                 .exclusive = kBit(page, 56)});
    });
    left -= read;
    at += static_cast<off_t>(read * sizeof(std::uint64_t));
  }
  close(file);
  return all;
}

void move_to_huge_pages(std::span<const std::byte> memory) {
  if (!may_use_huge_pages()) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = begin + memory.size();
  const auto is_ours = [](Page page) { return page.present && !page.of_file && page.exclusive; };
  // One call for neighbours: each waits for all CPUs.
  std::uintptr_t first = begin / kHugePage * kHugePage;
  for (std::uintptr_t at = first; at < end; at += kHugePage) {
    const bool moves =
        every_page({reinterpret_cast<const std::byte*>(at), kHugePage}, is_ours).value_or(false);
    const std::uintptr_t last = moves ? at + kHugePage : at;
    if (moves && last < end) continue;
    // For want of memory it would search in vain again; pages that are in use just now are few.
    if (last > first && madvise(reinterpret_cast<void*>(first), last - first, kCollapse) != 0 &&
        errno != EAGAIN) {
      return;
    }
    first = at + kHugePage;
  }
}

}  // namespace habana_mp
