// habana_mp._core: registers the families, nothing else.
#include "bind/module.h"

#include <system_error>

#include "base/python_error.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of habana_mp. Private: the public names are in habana_mp.";
  pybind11::register_local_exception_translator([](std::exception_ptr exception) {
    try {
      if (exception) std::rethrow_exception(exception);
    } catch (const std::system_error&) {  // the others pybind11 maps alike
      habana_mp::set_python_error();
    }
  });
  habana_mp::bind_policy(module);
  habana_mp::bind_log(module);
  habana_mp::bind_report(module);
  habana_mp::bind_convert(module);
  habana_mp::bind_autocast(module);
  habana_mp::bind_cast(module);
  habana_mp::bind_scope(module);
  habana_mp::bind_weights(module);
  habana_mp::bind_hpu(module);
  habana_mp::bind_probe(module);
}
