// Which memory moves into huge pages, where Linux gives them on demand and does not already give
// them to all.
#define DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <ios>
#include <span>
#include <string>

#include "cast/pages.h"

using namespace habana_mp;

namespace {

constexpr std::size_t kSmallPage = 4096;

struct Mapped {
  static constexpr std::size_t kSize = 4 * kHugePage;
  std::byte* all = static_cast<std::byte*>(
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::byte* pages = all + (-reinterpret_cast<std::uintptr_t>(all) % kHugePage);  // three

  Mapped() = default;
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { munmap(all, kSize); }

  std::span<const std::byte> memory(std::size_t first, std::size_t bytes) const {
    return {pages + first, bytes};
  }
  // KiB of it in huge pages.
  long huge() const {
    std::ifstream file("/proc/self/smaps");
    bool inside = false;
    long found = 0;
    for (std::string line; std::getline(file, line);) {
      std::size_t after = 0;
      if (line.find('-') < line.find(' ')) {
        const std::uintptr_t first = std::stoull(line, &after, 16);
        const std::uintptr_t last = std::stoull(line.substr(after + 1), nullptr, 16);
        const auto begin = reinterpret_cast<std::uintptr_t>(pages);
        inside = first < begin + 3 * kHugePage && begin < last;
      } else if (inside && line.starts_with("AnonHugePages:")) {
        found += std::stol(line.substr(line.find(':') + 1));
      }
    }
    return found;
  }
};

// Linux may fail for reasons that pass, such as a page that is just looked at.
constexpr int kTries = 5;

bool gives_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  std::getline(file, modes);
  if (modes.find("[madvise]") == std::string::npos) return false;
  const Mapped mapped;
  std::memset(mapped.pages, 1, kHugePage);
  for (int i = 0; i < kTries; ++i) {
    if (madvise(mapped.pages, kHugePage, 25) == 0) return true;
    if (errno != EAGAIN) return false;
  }
  return false;
}

void move(std::span<const std::byte> memory) {
  for (int i = 0; i < kTries; ++i) move_to_huge_pages(memory);
}

constexpr long kKiB = kHugePage / 1024;

}  // namespace

DOCTEST_TEST_CASE("memory moves into huge pages that are there already, and no others") {
  if (!gives_huge_pages()) {
    DOCTEST_MESSAGE("this Linux gives no huge pages on demand");
    return;
  }
  const Mapped mapped;
  std::memset(mapped.pages, 1, 2 * kHugePage - kSmallPage);
  DOCTEST_CHECK(mapped.huge() == 0);

  DOCTEST_SUBCASE("a page of which a part was never written stays as it is") {
    move(mapped.memory(0, 2 * kHugePage));
    DOCTEST_CHECK(mapped.huge() == kKiB);
    std::memset(mapped.pages + kHugePage, 1, kHugePage);
    move(mapped.memory(0, 2 * kHugePage));
    DOCTEST_CHECK(mapped.huge() == 2 * kKiB);
  }
  DOCTEST_SUBCASE("a page of which a part was only read stays as it is") {
    static_cast<void>(*static_cast<volatile std::byte*>(mapped.pages + 2 * kHugePage - 1));
    move(mapped.memory(kHugePage, kHugePage));
    DOCTEST_CHECK(mapped.huge() == 0);
  }
  DOCTEST_SUBCASE("all of the page moves in which the memory begins or ends") {
    move(mapped.memory(kHugePage / 2, 100));
    DOCTEST_CHECK(mapped.huge() == kKiB);
  }
  DOCTEST_SUBCASE("what a forked process shares stays as it is") {
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    move(mapped.memory(0, kHugePage));
    DOCTEST_CHECK(mapped.huge() == 0);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    move(mapped.memory(0, kHugePage));
    DOCTEST_CHECK(mapped.huge() == kKiB);
  }
  DOCTEST_SUBCASE("the numbers stay, and unmapped memory costs nothing") {
    move(mapped.memory(0, kHugePage));
    DOCTEST_CHECK(mapped.pages[kHugePage - 1] == std::byte{1});
    move({});
    move({reinterpret_cast<const std::byte*>(kHugePage), 3 * kHugePage});
    DOCTEST_CHECK(mapped.huge() == kKiB);
  }
}
