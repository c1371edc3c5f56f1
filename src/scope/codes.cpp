#include "scope/codes.h"

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "base/fork_safe_mutex.h"
#include "base/process_wide.h"

namespace habana_mp::autocast {
namespace {

// The digits of a code. Any dtypes would do that Python has an object for.
constexpr std::array kDigits = {at::kByte,
                                at::kChar,
                                at::kShort,
                                at::kInt,
                                at::kLong,
                                at::kHalf,
                                at::kFloat,
                                at::kDouble,
                                at::kComplexHalf,
                                at::kComplexFloat,
                                at::kComplexDouble,
                                at::kBool,
                                at::kQInt8,
                                at::kQUInt8,
                                at::kQInt32,
                                at::kBFloat16,
                                at::kQUInt4x2,
                                at::kQUInt2x4,
                                at::kBits1x8,
                                at::kBits2x4,
                                at::kBits4x2,
                                at::kBits8,
                                at::kBits16,
                                at::kFloat8_e5m2,
                                at::kFloat8_e4m3fn,
                                at::kFloat8_e5m2fnuz,
                                at::kFloat8_e4m3fnuz,
                                at::kUInt16,
                                at::kUInt32,
                                at::kUInt64};
constexpr int kBase = static_cast<int>(kDigits.size());
constexpr int kCodes = kBase * kBase * kBase;  // 0 stands for no policy

// Codes of what has been in force in this process. A code is never given to another content: graphs
// of torch.compile outlive the policies that they were traced under. It comes from the content
// alone but for rare collisions, so that caches on disk, which know graphs by it, can be used by
// other processes.
class Codes {
 public:
  ForkSafeMutex mutex;

  std::shared_ptr<const State> state_of(const Scopes& scopes) {
    const std::uint64_t content = hash_of(scopes);
    const std::lock_guard guard(mutex);
    const int code = code_of(content);
    std::weak_ptr<const State>& known = states_[code];
    if (auto state = known.lock(); state && state->scopes == scopes) return state;
    auto state = std::make_shared<const State>(State{scopes, code});
    known = state;
    return state;
  }

 private:
  static std::uint64_t hash_of(const Scopes& scopes) {
    std::uint64_t hash = 0xcbf29ce484222325u ^ kTracedCasts;
    for (const Scope& scope : scopes) {
      const std::uint64_t own = scope.rules ? scope.rules->policy->hash() : scope.suspended;
      hash = (hash ^ own ^ (scope.cached ? 0u : 1u)) * 0x100000001b3u;
      hash ^= hash >> 29;
    }
    return hash;
  }

  int code_of(std::uint64_t content) {
    int code = static_cast<int>(content % (kCodes - 1)) + 1;
    for (int tried = 1; tried < kCodes; ++tried) {
      const auto [place, fresh] = contents_.try_emplace(code, content);
      if (fresh || place->second == content) return code;
      code = code % (kCodes - 1) + 1;
    }
    throw std::runtime_error("more than " + std::to_string(kCodes - 1) +
                             " policies have been in force in this process");
  }

  std::unordered_map<int, std::uint64_t> contents_;
  std::unordered_map<int, std::weak_ptr<const State>> states_;
};

}  // namespace

Code digits_of(int code) {
  Code digits;
  for (at::ScalarType& digit : digits) {
    digit = kDigits[static_cast<std::size_t>(code % kBase)];
    code /= kBase;
  }
  return digits;
}

std::shared_ptr<const State> state_of(const Scopes& scopes) {
  return process_wide<Codes>().state_of(scopes);
}

}  // namespace habana_mp::autocast
