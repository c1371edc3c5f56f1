#include "convert/arguments.h"

#include <torch/csrc/Dtype.h>

#include <array>
#include <string_view>

#include "base/torch_private.h"

namespace habana_mp {
namespace {

// Keywords that CallForm does not name because every op spells them alike.
struct Keywords {
  using Names = std::array<PyObject*, 2>;

  static Names interned(const std::array<std::string_view, 2>& names) {
    return {PyUnicode_InternFromString(names[0].data()),
            PyUnicode_InternFromString(names[1].data())};
  }

  PyObject* out = PyUnicode_InternFromString("out");
  Names first = interned(kFirstInputNames);
  Names statistics = interned(kStatisticNames);
};

const Keywords& keywords() {
  static const Keywords names;
  return names;
}

// Keywords given as literals are interned; those that come out of a **dict need not be.
bool same_name(PyObject* keyword, PyObject* name) {
  return keyword == name || (name != nullptr && PyUnicode_Compare(keyword, name) == 0);
}

bool is_among(PyObject* keyword, const Keywords::Names& names) {
  return same_name(keyword, names[0]) || same_name(keyword, names[1]);
}

// What most arguments are that are no tensors, known without a walk over base classes. bool is an
// int.
bool is_simple(PyObject* object) {
  return object == Py_None || PyLong_Check(object) || PyFloat_CheckExact(object) ||
         PyUnicode_Check(object);
}

bool is_subclass_tensor(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

// Whether an object may override what an op does: tensor subclasses, and what is no tensor but
// stands in for one (proxies of a tracer, containers of tensors).
bool overrides(PyObject* object) {
  static PyObject* name = PyUnicode_InternFromString("__torch_function__");
  return torch_private::in_type(Py_TYPE(object), name) != nullptr;
}

// The role that the position or the keyword of an argument gives it; `name` is null for positions.
Role role_at(const CallForm& form, bool flagged, Py_ssize_t index, PyObject* name) {
  const auto& kw = keywords();
  bool first = false, written = false, statistic = false;
  if (name == nullptr) {
    first = index == 0;
    written = flagged && index == form.flag_target;
    statistic = index < 32 && ((form.statistics >> index) & 1U) != 0;
  } else {
    first = is_among(name, kw.first);
    written = flagged && same_name(name, form.flag_target_name);
    statistic = form.norm && !first && is_among(name, kw.statistics);
  }
  return role_of({.norm = form.norm,
                  .first = first,
                  .written = written || (form.in_place && first),
                  .statistic = statistic});
}

// The place of the keyword that names the first input (D15), counted as vectorcall lays arguments
// out; `positional` where none does. The order of keywords must not change a result.
Py_ssize_t first_keyword(Py_ssize_t positional, Py_ssize_t named, PyObject* kwnames) {
  for (Py_ssize_t i = 1; i < named; ++i) {
    if (is_among(PyTuple_GET_ITEM(kwnames, i), keywords().first)) return positional + i;
  }
  return positional;
}

// Whether a flag is given: inplace by its truth, max_norm by being a number.
bool is_set(PyObject* value) {
  if (value == Py_None || value == Py_False) return false;
  return PyLong_Check(value) ? PyObject_IsTrue(value) == 1 : true;
}

// Whether this call is in place because a parameter says so: F.relu(x, True), F.embedding(i,
// weight, max_norm=1.0) (D12).
bool is_flagged(const CallForm& form, PyObject* const* args, Py_ssize_t positional,
                PyObject* kwnames) {
  if (form.flag_name == nullptr) return false;
  if (form.flag < positional) return is_set(args[form.flag]);
  const Py_ssize_t named = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t i = 0; i < named; ++i) {
    if (same_name(PyTuple_GET_ITEM(kwnames, i), form.flag_name)) {
      return is_set(args[positional + i]);
    }
  }
  return false;
}

}  // namespace

bool DTypes::add_other(PyObject* object, bool nested) {
  if (is_simple(object)) return true;
  if (!nested && PyList_Check(object)) {
    return add(reinterpret_cast<PyListObject*>(object)->ob_item, PyList_GET_SIZE(object), true);
  }
  if (!nested && PyTuple_Check(object)) {
    return add(reinterpret_cast<PyTupleObject*>(object)->ob_item, PyTuple_GET_SIZE(object), true);
  }
  return !overrides(object);
}

inline void Arguments::add_tensor(PyObject* object, Py_ssize_t argument, Py_ssize_t item,
                                  Role role) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (size_ == capacity_) grow();
  args_[size_].dtype = dtype_of(tensor);
  args_[size_].zero_dim = tensor.dim() == 0;
  args_[size_].role = role;
  found_[size_].object = Py_NewRef(object);
  found_[size_].argument = argument;
  found_[size_].item = item;
  ++size_;
}

void Arguments::add_overrider(PyObject* object) {
  overriders_.push_back(object);
  Py_INCREF(object);
}

Arguments::~Arguments() {
  for (std::size_t i = 0; i < size_; ++i) Py_DECREF(found_[i].object);
  for (PyObject* object : overriders_) Py_DECREF(object);
}

void Arguments::grow() {
  if (heap_args_.empty()) {
    heap_args_.assign(inline_args_, inline_args_ + size_);
    heap_found_.assign(inline_found_, inline_found_ + size_);
  }
  capacity_ *= 4;
  heap_args_.resize(capacity_);
  heap_found_.resize(capacity_);
  args_ = heap_args_.data();
  found_ = heap_found_.data();
}

void Arguments::add_items(PyObject* container, Py_ssize_t argument, Role role) {
  const bool is_list = PyList_Check(container);
  const Py_ssize_t size = is_list ? PyList_GET_SIZE(container) : PyTuple_GET_SIZE(container);
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* item = is_list ? PyList_GET_ITEM(container, i) : PyTuple_GET_ITEM(container, i);
    if (is_exact_tensor(item)) {
      add_tensor(item, argument, i, role);
    } else if (is_subclass_tensor(item)) {
      overridden_ = true;
      add_tensor(item, argument, i, role);
    } else if (overrides(item)) {
      add_overrider(item);
    }
  }
}

void Arguments::find(const CallForm& form, PyObject* const* args, Py_ssize_t positional,
                     PyObject* kwnames) {
  const auto& kw = keywords();
  const Py_ssize_t named = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  const bool flagged = is_flagged(form, args, positional, kwnames);
  const bool plain = !form.in_place && !form.norm && !flagged;
  const Py_ssize_t first = first_keyword(positional, named, kwnames);
  for (Py_ssize_t turn = 0; turn < positional + named; ++turn) {
    Py_ssize_t i = turn;  // positions, then the first input by keyword, then the other keywords
    if (turn >= positional && turn <= first) i = turn == positional ? first : turn - 1;
    PyObject* value = args[i];
    PyObject* name = i < positional ? nullptr : PyTuple_GET_ITEM(kwnames, i - positional);
    if (is_exact_tensor(value)) {
      add_tensor(value, i, -1, plain ? Role::Input : role_at(form, flagged, i, name));
    } else if (is_simple(value)) {
      continue;
    } else if (PyList_Check(value) || PyTuple_Check(value)) {
      add_items(value, i, plain ? Role::Input : role_at(form, flagged, i, name));
    } else if (THPDtype_Check(value) ||
               PyType_Check(value)) {  // softmax(x, 0, float) names a dtype by its Python type
      explicit_dtype_ = true;
    } else if (is_subclass_tensor(value)) {
      overridden_ = true;
      add_tensor(value, i, -1, plain ? Role::Input : role_at(form, flagged, i, name));
    } else if (overrides(value)) {
      add_overrider(value);
    }
    if (value != Py_None && (name == nullptr ? i == form.out : same_name(name, kw.out)))
      explicit_dtype_ = true;
  }
}

std::string Arguments::label(std::size_t i, Py_ssize_t positional, PyObject* kwnames) const {
  const FoundTensor& tensor = found_[i];
  std::string label =
      tensor.argument < positional
          ? std::to_string(tensor.argument)
          : PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, tensor.argument - positional));
  if (tensor.item >= 0) label += "[" + std::to_string(tensor.item) + "]";
  return label;
}

}  // namespace habana_mp
