// The tensors among the arguments of a Python call: found, described to decide(), and replaced by
// their casts. Knows how a call is written (positions, keywords, containers); knows nothing of
// policies.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <span>
#include <string>

#include "policy/decide.h"

namespace habana_mp {

// How the calls of one op are written: which arguments are more than inputs.
struct CallForm {
  bool in_place = false;  // the name says so (relu_, __iadd__): argument 0 is written to (D12)
  bool norm =
      false;  // argument 0 is the input, the others are affine parameters or statistics (D14)
  bool python =
      false;  // the original is a Python function: other patched ops may run inside it (D19)
  bool overridable = false;  // torch lets __torch_function__ override it
  std::int8_t out = -1;      // position of `out`, where it can be given by position (D11)
  std::int8_t flag =
      -1;  // position of the parameter that makes the call in place (D12): inplace, max_norm
  std::int8_t flag_target = 0;    // position of the argument that is then written to
  std::uint32_t statistics = 0;   // positions of running statistics, a bit each (D14)
  PyObject* flag_name = nullptr;  // "inplace" or "max_norm" (interned), null where there is none
  PyObject* flag_target_name = nullptr;  // keyword of the argument at flag_target (interned)
};

// A tensor among the arguments; `argument` counts positions first, then keywords, as vectorcall
// lays them out.
struct FoundTensor {
  PyObject* object;  // borrowed
  Py_ssize_t argument;
  Py_ssize_t item;  // index inside a list or tuple, -1 if it is the argument itself
};

class Arguments {
 public:
  void find(const CallForm& form, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames);

  std::span<const Arg> described() const { return {args_.data(), args_.size()}; }
  const FoundTensor& tensor(std::size_t i) const { return found_[i]; }
  std::size_t size() const { return found_.size(); }
  bool explicit_dtype() const { return explicit_dtype_; }
  bool has_subclass() const { return has_subclass_; }

  // The name of a tensor's argument, as the detailed log shows it: "0", "weight", "tensors[1]".
  std::string label(std::size_t i, Py_ssize_t positional, PyObject* kwnames) const;

 private:
  void add_tensor(PyObject* object, Py_ssize_t argument, Py_ssize_t item, Role role);
  void add_items(PyObject* container, Py_ssize_t argument, Role role);

  c10::SmallVector<Arg, 8> args_;
  c10::SmallVector<FoundTensor, 8> found_;
  bool explicit_dtype_ = false;
  bool has_subclass_ = false;
};

// The arguments of a call with casts in them: owns the casts and the containers rebuilt for them,
// never changes the caller's (D13).
class CastArguments {
 public:
  CastArguments(PyObject* const* args, Py_ssize_t count);
  ~CastArguments();
  CastArguments(const CastArguments&) = delete;
  CastArguments& operator=(const CastArguments&) = delete;

  // False with a Python error set if a cast fails.
  bool apply(const Arguments& arguments, const Decision& decision);

  // Laid out for a vectorcall that may use the slot before the first argument.
  PyObject* const* data() const { return slots_.data() + 1; }

 private:
  PyObject* own(PyObject* object);

  c10::SmallVector<PyObject*, 12> slots_;
  c10::SmallVector<PyObject*, 8> owned_;
};

}  // namespace habana_mp
