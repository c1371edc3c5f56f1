// How the calls of one op are written: which arguments are more than inputs.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstdint>

namespace habana_mp {

struct CallForm {
  bool in_place = false;  // the name says so (relu_, __iadd__): argument 0 is written to (D12)
  bool norm =
      false;  // argument 0 is the input, the others are affine parameters or statistics (D14)
  bool python =
      false;  // the original is a Python function: other patched ops may run inside it (D19)
  bool overridable = false;          // torch lets __torch_function__ override it
  bool contiguous = false;           // matrix products: they copy batches that lie otherwise
  bool compound = false;             // made of other ops in C++, which rules hold for (D41)
  bool may_lack_low_kernel = false;  // some device has none (D42)
  std::int8_t out = -1;              // position of `out`, where it can be given by position (D11)
  std::int8_t flag =
      -1;  // position of the parameter that makes the call in place (D12): inplace, max_norm
  std::int8_t flag_target = 0;    // position of the argument that is then written to
  std::uint32_t statistics = 0;   // positions of running statistics, a bit each (D14)
  PyObject* flag_name = nullptr;  // "inplace" or "max_norm" (interned), null where there is none
  PyObject* flag_target_name = nullptr;  // keyword of the argument at flag_target (interned)
};

}  // namespace habana_mp
