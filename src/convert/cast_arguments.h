// The arguments of a Python call with casts in them.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/python_headers.h>

#include "call/cast_argument.h"
#include "convert/arguments.h"
#include "convert/call_form.h"
#include "policy/decide.h"

namespace habana_mp {

// Owns the casts and the containers rebuilt for them, never changes the caller's (D13).
class CastArguments {
 public:
  CastArguments(PyObject* const* args, Py_ssize_t count);
  ~CastArguments();
  CastArguments(const CastArguments&) = delete;
  CastArguments& operator=(const CastArguments&) = delete;

  // False with a Python error set if a cast fails. `cached`: weights by the copies of the cache.
  bool apply(const CallForm& form, const Arguments& arguments, const Decision& decision,
             bool cached);

  // Whether the result of an op must not be returned to the caller (LentCopies).
  bool lends(PyObject* result) const;

  // Laid out for a vectorcall that may use the slot before the first argument.
  PyObject* const* data() const { return slots_.data() + 1; }

 private:
  PyObject* own(PyObject* object);
  PyObject* cast(PyObject* tensor, DType to, How how);

  LentCopies lent_;
  c10::SmallVector<PyObject*, 12> slots_;
  c10::SmallVector<PyObject*, 8> owned_;
};

}  // namespace habana_mp
