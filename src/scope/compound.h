// The rules of a conversion where ops pass no patched op: inside a compound that convert has
// patched (D41), and in TorchScript code. There they run in a region of the conversion's policy, as
// they do under autocast.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "policy/policy.h"
#include "scope/regions.h"

namespace habana_mp::autocast {

// Makes the rules of a conversion and registers their kernels. Set when the module is loaded, by
// the folder that can: it lies above this one.
using MakeRules = std::shared_ptr<const Rules> (*)(std::shared_ptr<const Policy>);
void set_rules_maker(MakeRules make);

// The policy of the conversion in force from now on; null: of none.
void set_conversion(std::shared_ptr<const Policy> policy);
std::shared_ptr<const Policy> conversion();
// Distinguishes conversions, 0 without one.
std::uint64_t conversion_id();

// The same as a region, for traced code, which enters it by name; none where autocast is on, or
// without a conversion.
std::optional<Region> compound_region();

// Whether a region of autocast, ours or torch's, is on here for some device, other than that of a
// compound: it decides then.
bool in_region();

// Whether it is a region of ours whose policy has the op in a list for 8 bits.
bool in_region_of_int8(std::string_view op);

enum class Unpatched : std::uint8_t { Compound, Script };

// Puts the rules of the conversion in force on this thread. Inside a region of autocast, ours or
// torch's, it does nothing: the region decides there.
class InsideUnpatched {
 public:
  explicit InsideUnpatched(Unpatched code);
  ~InsideUnpatched();
  InsideUnpatched(const InsideUnpatched&) = delete;
  InsideUnpatched& operator=(const InsideUnpatched&) = delete;

 private:
  std::shared_ptr<const State> state_;
  std::optional<ThreadState> before_;
  c10::impl::LocalDispatchKeySet keys_before_;
  std::optional<bool> optimized_before_;
};

}  // namespace habana_mp::autocast
