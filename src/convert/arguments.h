// The tensors among the arguments of a Python call: found, and described to decide(). Knows how a
// call is written (positions, keywords, containers); knows nothing of policies.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "cast/dtypes.h"
#include "convert/call_form.h"
#include "policy/decide.h"

namespace habana_mp {

// A tensor, and of no subclass.
inline bool is_exact_tensor(PyObject* object) {
  return THPVariable_CheckTypeExact(Py_TYPE(object));
}

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
  bool has(DType dtype) const {
    const auto all = described();
    return std::ranges::any_of(all, [dtype](const Arg& arg) { return arg.dtype == dtype; });
  }
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

}  // namespace habana_mp
