#include "convert/cast_arguments.h"

#include <algorithm>

#include "base/module_attribute.h"

namespace habana_mp {
namespace {

// A container of the same type with other items; a new reference or null.
PyObject* rebuild_container(PyObject* container, PyObject* items) {
  PyTypeObject* type = Py_TYPE(container);
  if (type == &PyList_Type) return Py_NewRef(items);
  if (PyList_Check(
          container)) {  // a subclass keeps its attributes: copied as copy.copy does, then filled
    static PyObject* copy = module_attribute("copy", "copy");
    PyObject* same = PyObject_CallOneArg(copy, container);
    if (same == nullptr || PyList_SetSlice(same, 0, PyList_GET_SIZE(same), items) == 0) return same;
    Py_DECREF(same);
    return nullptr;
  }
  PyObject* tuple = PyList_AsTuple(items);
  if (tuple == nullptr || type == &PyTuple_Type) return tuple;
  PyObject* result = nullptr;
  if (PyObject_HasAttrString(container, "_make")) {  // named tuple
    result = PyObject_CallMethod(reinterpret_cast<PyObject*>(type), "_make", "(O)", tuple);
  } else {  // past a constructor that may take the items in its own way
    static PyObject* tuple_new =
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyTuple_Type), "__new__");
    result =
        PyObject_CallFunctionObjArgs(tuple_new, reinterpret_cast<PyObject*>(type), tuple, nullptr);
    // torch.return_types and their like may be made by their own constructor alone.
    if (result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      result = PyObject_CallOneArg(reinterpret_cast<PyObject*>(type), tuple);
    }
  }
  Py_DECREF(tuple);
  return result;
}

}  // namespace

CastArguments::CastArguments(PyObject* const* args, Py_ssize_t count) {
  slots_.push_back(nullptr);
  slots_.append(args, args + count);
}

CastArguments::~CastArguments() {
  for (PyObject* object : owned_) Py_DECREF(object);
}

PyObject* CastArguments::own(PyObject* object) {
  if (object != nullptr) owned_.push_back(object);
  return object;
}

PyObject* CastArguments::cast(PyObject* tensor, DType to, How how) {
  PyObject* result = own(cast_argument(tensor, to, how));
  if (how.cached && result != nullptr && is_exact_tensor(result)) {
    lent_.add(THPVariable_Unpack(result));
  }
  return result;
}

bool CastArguments::lends(PyObject* result) const {
  if (lent_.empty()) return false;
  const auto is_lent = [&](PyObject* item) {
    return is_exact_tensor(item) && lent_.include(THPVariable_Unpack(item));
  };
  if (!PyTuple_Check(result) && !PyList_Check(result)) return is_lent(result);
  PyObject** items = PySequence_Fast_ITEMS(result);
  return std::any_of(items, items + PySequence_Fast_GET_SIZE(result), is_lent);
}

bool CastArguments::apply(const CallForm& form, const Arguments& arguments,
                          const Decision& decision, bool cached) {
  const auto described = arguments.described();
  const How how{.cached = cached, .contiguous = form.contiguous};
  c10::SmallVector<PyObject*, 8> casts(arguments.size(), nullptr);
  PyObject* items =
      nullptr;  // a list of what the container at argument `open` holds, while its tensors are cast
  Py_ssize_t open = -1;
  const auto close_container = [&] {
    if (items == nullptr) return true;
    PyObject*& slot = slots_[static_cast<std::size_t>(open) + 1];
    PyObject* rebuilt = own(rebuild_container(slot, items));
    if (rebuilt != nullptr) slot = rebuilt;
    items = nullptr;
    return rebuilt != nullptr;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!decision.casts(described[i])) continue;
    const FoundTensor& tensor = arguments.tensor(i);
    // A tensor that a call has twice is cast once: what compares its inputs by identity
    // (self-attention) still can.
    for (std::size_t j = 0; j < i && casts[i] == nullptr; ++j) {
      if (arguments.tensor(j).object == tensor.object) casts[i] = casts[j];
    }
    if (casts[i] == nullptr) casts[i] = cast(tensor.object, decision.to, how);
    if (casts[i] == nullptr) return false;
    if (tensor.argument != open && !close_container()) return false;
    PyObject*& slot = slots_[static_cast<std::size_t>(tensor.argument) + 1];
    if (tensor.item < 0) {
      slot = casts[i];
      continue;
    }
    if (items == nullptr) {
      items = own(PySequence_List(slot));
      open = tensor.argument;
      if (items == nullptr) return false;
    }
    if (PyList_SetItem(items, tensor.item, Py_NewRef(casts[i])) < 0) return false;
  }
  return close_container();
}

}  // namespace habana_mp
