#include "call/error_note.h"

#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "base/process_wide.h"
#include "call/no_kernel.h"

namespace habana_mp {
namespace {

struct Registered {
  py::function function;
};

py::function& function() { return process_wide<Registered>().function; }

}  // namespace

std::string message_of(const py::object& error) {
  try {
    return py::str(error).cast<std::string>();
  } catch (const std::exception&) {
    PyErr_Clear();
    return "";
  }
}

void set_error_note(py::function registered) { function() = std::move(registered); }

void add_error_note(const std::string& op, std::span<const at::Tensor> tensors) {
  if (!function()) return;
  py::error_already_set error;  // takes the error that is set
  try {
    py::list found;
    for (const at::Tensor& tensor : tensors) found.append(tensor);
    function()(error.value(), op, found, last_lower == nullptr ? "" : *last_lower, py::none(),
               py::arg("casts_off") = false);
  } catch (...) {  // the error itself matters more
    PyErr_Clear();
  }
  error.restore();
}

void add_note_at_end(const py::object& error, const std::shared_ptr<const Policy>& policy,
                     bool casts_off) noexcept {
  try {
    if (!function() || !blames_low_dtype(message_of(error))) return;
    function()(error, "", py::list(), last_lower == nullptr ? "" : *last_lower,
               std::const_pointer_cast<Policy>(policy), py::arg("casts_off") = casts_off);
  } catch (...) {
    PyErr_Clear();
  }
}

}  // namespace habana_mp
