#include "weights/alias_watch.h"

#include <torch/csrc/autograd/python_variable.h>

#include "cast/numbers.h"
#include "weights/weight_cache.h"

namespace habana_mp {
namespace {

void end_alias(PyObject* tensor, bool exported) {
  if (THPVariable_Check(tensor)) weight_cache().end_alias(THPVariable_Unpack(tensor), exported);
}

// What set_ is on an instance: a pair of torch's own and the instance, which shares the memory of
// the argument afterwards, whatever that is. What stands for other tensors is not asked which.
PyObject* call_set(PyObject* pair, PyObject* args, PyObject* kwargs) {
  PyObject* const instance = PyTuple_GET_ITEM(pair, 1);
  const bool is_tensor = THPVariable_Check(instance);  // asks Python: not while an error is set
  PyObject* result = PyObject_Call(PyTuple_GET_ITEM(pair, 0), args, kwargs);
  if (is_tensor && is_ordinary(THPVariable_Unpack(instance))) {
    weight_cache().end_alias(THPVariable_Unpack(instance), /*exported=*/false);
  } else {
    weight_cache().end_all(Ended::Alias);
  }
  return result;
}

PyMethodDef set_method = {"set_",
                          reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_set)),
                          METH_VARARGS | METH_KEYWORDS, nullptr};

struct AliasWatch {
  PyObject_HEAD PyObject* original;
  AliasKind kind;
};

PyObject* get(PyObject* self, PyObject* instance, PyObject* type) {
  const auto& watch = *reinterpret_cast<AliasWatch*>(self);
  if (instance == nullptr || instance == Py_None) return Py_NewRef(watch.original);
  PyObject* result = Py_TYPE(watch.original)->tp_descr_get(watch.original, instance, type);
  // Only now: a cast that another thread begins from here on sees the alias, an earlier one is not
  // kept.
  if (result == nullptr) return nullptr;
  if (watch.kind != AliasKind::Set) {
    end_alias(instance, watch.kind == AliasKind::Exported);
    return result;
  }
  PyObject* pair = PyTuple_Pack(2, result, instance);
  Py_DECREF(result);
  if (pair == nullptr) return nullptr;
  PyObject* method = PyCFunction_New(&set_method, pair);
  Py_DECREF(pair);
  return method;
}

int set(PyObject* self, PyObject* instance, PyObject* value) {
  const auto& watch = *reinterpret_cast<AliasWatch*>(self);
  const int failed = Py_TYPE(watch.original)->tp_descr_set(watch.original, instance, value);
  // a.data = b makes a an alias of b.
  if (failed == 0 && value != nullptr) end_alias(value, /*exported=*/false);
  return failed;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(reinterpret_cast<AliasWatch*>(self)->original);
  type->tp_free(self);
  Py_DECREF(type);
}

// Properties can be set; methods must leave room for an attribute of that name on the instance.
PyTypeObject* make_type(const char* name, bool property) {
  PyType_Slot slots[] = {
      {Py_tp_descr_get, reinterpret_cast<void*>(get)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {property ? Py_tp_descr_set : 0, property ? reinterpret_cast<void*>(set) : nullptr},
      {0, nullptr},
  };
  PyType_Spec spec = {name, sizeof(AliasWatch), 0, Py_TPFLAGS_DEFAULT, slots};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

}  // namespace

PyObject* alias_watch(PyObject* original, AliasKind kind) {
  static PyTypeObject* property = make_type("habana_mp._core.WatchedProperty", true);
  static PyTypeObject* method = make_type("habana_mp._core.WatchedMethod", false);
  if (property == nullptr || method == nullptr) return PyErr_NoMemory();
  if (Py_TYPE(original)->tp_descr_get == nullptr) {
    PyErr_SetString(PyExc_TypeError, "alias_watch takes a descriptor");
    return nullptr;
  }
  PyTypeObject* type = Py_TYPE(original)->tp_descr_set == nullptr ? method : property;
  auto* watch = reinterpret_cast<AliasWatch*>(type->tp_alloc(type, 0));
  if (watch == nullptr) return nullptr;
  watch->original = Py_NewRef(original);
  watch->kind = kind;
  return reinterpret_cast<PyObject*>(watch);
}

}  // namespace habana_mp
