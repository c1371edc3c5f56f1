// habana_mp._core: registers the families, nothing else.
#include "bind/bind.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of habana_mp. Private: the public names are in habana_mp.";
  habana_mp::bind_policy(module);
  habana_mp::bind_record(module);
  habana_mp::bind_patched_op(module);
}
