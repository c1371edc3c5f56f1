// The tensors among the arguments of a Python call: found, described to decide(), and replaced by
// their casts. Knows how a call is written (positions, keywords, containers); knows nothing of
// policies.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy/decide.h"
#include "cast/numbers.h"

namespace habana_mp {

// How the calls of one op are written: which arguments are more than inputs.
struct CallForm {
  bool in_place = false;  // the name says so (relu_, __iadd__): argument 0 is written to (D12)
  bool norm =
      false;  // argument 0 is the input, the others are affine parameters or statistics (D14)
  bool python =
      false;  // the original is a Python function: other patched ops may run inside it (D19)
  bool overridable = false;  // torch lets __torch_function__ override it
  bool contiguous = false;   // matrix products: they copy batches that lie otherwise
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
  PyObject* object;  // owned by the Arguments
  Py_ssize_t argument;
  Py_ssize_t item;  // index inside a list or tuple, -1 if it is the argument itself
};

// The dtypes among the tensors of a call, eligible or not by their layout, and nothing else of it.
class DTypes {
 public:
  // False where something among them may override ops: what it does is not to be guessed.
  // `nested`: the objects are items of a list or tuple, whose own containers are not looked into.
  bool add(PyObject* const* objects, Py_ssize_t count, bool nested = false) {
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!THPVariable_CheckTypeExact(Py_TYPE(objects[i]))) {
        if (!add_other(objects[i], nested)) return false;
      } else if (const at::Tensor& tensor = THPVariable_Unpack(objects[i]); tensor.defined()) {
        mask_ |= dtype_bit(number_dtype(tensor));
      }
    }
    return true;
  }
  unsigned mask() const { return mask_; }  // dtype_bit()s

 private:
  bool add_other(PyObject* object, bool nested);

  unsigned mask_ = 0;
};

// Owns what it found: the log's stream and a cast of another argument may run Python code, or let
// other threads run, that changes the caller's list.
class Arguments {
 public:
  Arguments() = default;
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  void find(const CallForm& form, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames);

  std::span<const Arg> described() const { return {args_, size_}; }
  const FoundTensor& tensor(std::size_t i) const { return found_[i]; }
  std::size_t size() const { return size_; }
  bool explicit_dtype() const { return explicit_dtype_; }
  // Whether an argument may override the op by __torch_function__.
  bool overridden() const { return overridden_ || !overriders_.empty(); }
  // Those of them that are no tensors.
  std::span<PyObject* const> overriders() const { return {overriders_.data(), overriders_.size()}; }

  // The name of a tensor's argument, as the detailed log shows it: "0", "weight", "tensors[1]".
  std::string label(std::size_t i, Py_ssize_t positional, PyObject* kwnames) const;

 private:
  static constexpr std::size_t kInline = 8;

  void add_tensor(PyObject* object, Py_ssize_t argument, Py_ssize_t item, Role role);
  void add_overrider(PyObject* object);
  void add_items(PyObject* container, Py_ssize_t argument, Role role);
  void grow();

  // Two arrays that move to the heap together. Fields are stored one by one where they stay: a
  // vector of structs copied whole stalls on store forwarding, which costs more than all the rest
  // of a call.
  Arg inline_args_[kInline];
  FoundTensor inline_found_[kInline];
  Arg* args_ = inline_args_;
  FoundTensor* found_ = inline_found_;
  std::size_t size_ = 0;
  std::size_t capacity_ = kInline;
  std::vector<Arg> heap_args_;
  std::vector<FoundTensor> heap_found_;
  bool explicit_dtype_ = false;
  bool overridden_ = false;
  c10::SmallVector<PyObject*, 2> overriders_;
};

// The arguments of a call with casts in them: owns the casts and the containers rebuilt for them,
// never changes the caller's (D13).
class CastArguments {
 public:
  CastArguments(PyObject* const* args, Py_ssize_t count);
  ~CastArguments();
  CastArguments(const CastArguments&) = delete;
  CastArguments& operator=(const CastArguments&) = delete;

  // False with a Python error set if a cast fails. `cached`: weights by the copies of the cache.
  bool apply(const CallForm& form, const Arguments& arguments, const Decision& decision,
             bool cached);

  // Whether the result of an op shares memory with one of those copies.
  bool gave_away_copy(PyObject* result) const;

  // Laid out for a vectorcall that may use the slot before the first argument.
  PyObject* const* data() const { return slots_.data() + 1; }

 private:
  PyObject* own(PyObject* object);
  PyObject* cast(PyObject* tensor, DType to, How how);
  bool is_copy(PyObject* result) const;

  c10::SmallVector<PyObject*, 2> copies_;  // casts that the weight cache holds too
  c10::SmallVector<PyObject*, 12> slots_;
  c10::SmallVector<PyObject*, 8> owned_;
};

}  // namespace habana_mp
