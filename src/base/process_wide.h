// The one instance of a type in this process.
#pragma once

namespace habana_mp {

namespace process_wide_detail {

// Made while the module loads, by the one thread that loads it: what C++ makes at first use has a
// lock of its own, which a fork does not know.
template <class T>
inline T& instance = *new T;

}  // namespace process_wide_detail

// Never destroyed: tensors may be used and freed while the process ends.
template <class T>
T& process_wide() {
  return process_wide_detail::instance<T>;
}

}  // namespace habana_mp
