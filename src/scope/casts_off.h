// Whether casts are off on this thread: inside disable_casts, and inside an atomic op (D19, D27).
//
// The state is the autocast switch of a device type that nobody casts on (kCastsOffKey), which
// torch.compile guards: it so recompiles when it changes and can trace the code that sets it.
// habana_mp/_scope/disable_casts.py names the same device type for traced code.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/torch_private.h"

namespace habana_mp {

using torch_private::kCastsOffKey;
using torch_private::kConvertOffKey;

// `excluded`: of this thread's key set.
inline bool casts_off(c10::DispatchKeySet excluded) { return !excluded.has(kCastsOffKey); }

inline bool casts_off() { return casts_off(c10::impl::tls_local_dispatch_key_set().excluded_); }

inline void set_casts_off(bool off) {
  c10::impl::tls_set_dispatch_key_excluded(kCastsOffKey, !off);
}

// Whether the casts of convert are off: where all are, and where a region acts in its place
// (set_policies).
inline bool convert_off() {
  constexpr c10::DispatchKeySet kBoth({kCastsOffKey, kConvertOffKey});
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has_all(kBoth);
}

inline bool in_place_of_convert() {
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has(kConvertOffKey);
}

inline void set_in_place_of_convert(bool off) {
  c10::impl::tls_set_dispatch_key_excluded(kConvertOffKey, !off);
}

// Switches casts off for a scope; `enter` false makes it do nothing.
class CastsOffGuard {
 public:
  explicit CastsOffGuard(bool enter) : restore_(enter && !casts_off()) {
    if (restore_) set_casts_off(true);
  }
  ~CastsOffGuard() {
    if (restore_) set_casts_off(false);
  }
  CastsOffGuard(const CastsOffGuard&) = delete;
  CastsOffGuard& operator=(const CastsOffGuard&) = delete;

 private:
  bool restore_;
};

}  // namespace habana_mp
