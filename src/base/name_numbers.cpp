#include "base/name_numbers.h"

#include <deque>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"

namespace habana_mp {
namespace {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

struct Names {
  ForkSafeMutex mutex;
  std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>> numbers;
  std::deque<std::string> texts{""};
};

Names& all() { return process_wide<Names>(); }

}  // namespace

std::uint32_t number_of(std::string_view name) {
  const std::lock_guard guard(all().mutex);
  Names& names = all();
  if (const auto found = names.numbers.find(name); found != names.numbers.end()) {
    return found->second;
  }
  if (names.texts.size() >= kMostNames) return 0;
  const auto number = static_cast<std::uint32_t>(names.texts.size());
  names.texts.emplace_back(name);
  names.numbers.emplace(name, number);
  return number;
}

std::string name_of(std::uint32_t number) {
  const std::lock_guard guard(all().mutex);
  return all().texts[number];
}

}  // namespace habana_mp
