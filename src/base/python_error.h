// C++ exceptions as Python errors: the one place that maps their types.
#pragma once

namespace habana_mp {

// Sets the Python error for the exception being handled; call it inside a catch block.
void set_python_error();

}  // namespace habana_mp
