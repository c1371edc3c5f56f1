#include "convert/patched_type.h"

#include <pybind11/pybind11.h>
#include <structmember.h>

#include <memory>
#include <utility>

#include "convert/patched_op.h"

namespace habana_mp {
namespace {

PyObject* new_op(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"original",    "override_function",
                                "name",        "in_place",
                                "norm",        "python",
                                "overridable", "out",
                                "flag",        "flag_name",
                                "flag_target", "flag_target_name",
                                "statistics",  "contiguous",
                                "compound",    "may_lack_low_kernel",
                                nullptr};
  PyObject *original = nullptr, *override_function = nullptr, *flag_name = Py_None,
           *flag_target_name = Py_None;
  const char* op_name = nullptr;
  int in_place = 0, norm = 0, python = 0, overridable = 0, contiguous = 0, compound = 0,
      may_lack_low_kernel = 0, out = -1, flag = -1, flag_target = 0;
  unsigned statistics = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOs|$ppppiiOiOIppp", const_cast<char**>(names),
                                   &original, &override_function, &op_name, &in_place, &norm,
                                   &python, &overridable, &out, &flag, &flag_name, &flag_target,
                                   &flag_target_name, &statistics, &contiguous, &compound,
                                   &may_lack_low_kernel)) {
    return nullptr;
  }
  auto* op = reinterpret_cast<PatchedOp*>(type->tp_alloc(type, 0));
  if (op == nullptr) return nullptr;
  op->vectorcall = vectorcall;
  op->original = Py_NewRef(original);
  op->override_function = Py_NewRef(override_function);
  op->form = {
      .in_place = in_place != 0,
      .norm = norm != 0,
      .python = python != 0,
      .overridable = overridable != 0,
      .contiguous = contiguous != 0,
      .compound = compound != 0,
      .may_lack_low_kernel = may_lack_low_kernel != 0,
      .out = static_cast<std::int8_t>(out),
      .flag = static_cast<std::int8_t>(flag),
      .flag_target = static_cast<std::int8_t>(flag_target),
      .statistics = statistics,
      .flag_name = flag_name == Py_None ? nullptr : Py_NewRef(flag_name),
      .flag_target_name = flag_target_name == Py_None ? nullptr : Py_NewRef(flag_target_name),
  };
  op->layout = python != 0 || in_place != 0 ? Layout::Plain : packed_layout(op_name);
  op->rule = Rule{};
  op->active = false;
  op->rule_text = new std::string;
  op->name = new std::string(op_name);
  op->repr = new std::string;
  op->name_number = 0;
  op->decider_id = 0;
  op->region_policy = nullptr;
  return reinterpret_cast<PyObject*>(op);
}

int init_op(PyObject*, PyObject*, PyObject*) { return 0; }

int traverse_op(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<PatchedOp*>(self)->original);
  Py_VISIT(reinterpret_cast<PatchedOp*>(self)->override_function);
  return 0;
}

int clear_op(PyObject* self) {
  Py_CLEAR(reinterpret_cast<PatchedOp*>(self)->original);
  Py_CLEAR(reinterpret_cast<PatchedOp*>(self)->override_function);
  return 0;
}

void dealloc_op(PyObject* self) {
  auto* op = reinterpret_cast<PatchedOp*>(self);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_op(self);
  Py_CLEAR(op->form.flag_name);
  Py_CLEAR(op->form.flag_target_name);
  delete op->rule_text;
  delete op->name;
  delete op->repr;
  delete op->region_policy;
  type->tp_free(self);
  Py_DECREF(type);
}

// `rule` is None, or (action, low, listed, text). It is kept in the instance's __dict__ too, where
// traced code reads it.
int set_rule(PatchedOp* op, PyObject* value) {
  if (value == nullptr || value == Py_None) {
    op->active = false;
    return 0;
  }
  int action = 0, low = 0, listed = 0;
  const char* text = nullptr;
  if (!PyTuple_Check(value)) {
    PyErr_SetString(PyExc_TypeError, "rule must be None or a tuple (action, low, listed, text)");
    return -1;
  }
  if (!PyArg_ParseTuple(value, "iips", &action, &low, &listed, &text)) return -1;
  op->rule = Rule{static_cast<Action>(action), static_cast<DType>(low), listed != 0};
  *op->rule_text = text;
  op->decider_id = 0;
  op->active = true;
  return 0;
}

int set_region_policy(PatchedOp* op, PyObject* value) {
  try {
    auto policy = pybind11::cast<std::shared_ptr<Policy>>(pybind11::handle(value));
    delete std::exchange(op->region_policy, nullptr);
    op->region_policy = new std::shared_ptr<const Policy>(std::move(policy));
  } catch (const pybind11::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "region_policy must be a Policy of _core");
    return -1;
  }
  return 0;
}

int setattr_op(PyObject* self, PyObject* name, PyObject* value) {
  if (PyUnicode_CompareWithASCIIString(name, "region_policy") == 0 && value != nullptr &&
      set_region_policy(reinterpret_cast<PatchedOp*>(self), value) < 0) {
    return -1;
  }
  if (PyUnicode_CompareWithASCIIString(name, "rule") == 0 &&
      set_rule(reinterpret_cast<PatchedOp*>(self), value) < 0) {
    return -1;
  }
  return PyObject_GenericSetAttr(self, name, value);
}

// Equal to its original, and found where that is a key: torch's code and other people's tables know
// the functions of torch by identity.
PyObject* compare_op(PyObject* self, PyObject* other, int operation) {
  if (operation != Py_EQ && operation != Py_NE) Py_RETURN_NOTIMPLEMENTED;
  const bool same = self == other || reinterpret_cast<PatchedOp*>(self)->original == other;
  return PyBool_FromLong(same == (operation == Py_EQ));
}

Py_hash_t hash_op(PyObject* self) {
  return PyObject_Hash(reinterpret_cast<PatchedOp*>(self)->original);
}

PyObject* bind_method(PyObject* self, PyObject* instance, PyObject*) {
  return instance == nullptr || instance == Py_None ? Py_NewRef(self)
                                                    : PyMethod_New(self, instance);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PatchedOp, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyObject* make_type(const char* name, const char* doc, bool binds) {
  PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(new_op)},
      {Py_tp_init, reinterpret_cast<void*>(init_op)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_op)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse_op)},
      {Py_tp_clear, reinterpret_cast<void*>(clear_op)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_setattro, reinterpret_cast<void*>(setattr_op)},
      {Py_tp_members, members},
      {Py_tp_richcompare, reinterpret_cast<void*>(compare_op)},
      {Py_tp_hash, reinterpret_cast<void*>(hash_op)},
      {Py_tp_doc, const_cast<char*>(doc)},
      {binds ? Py_tp_descr_get : 0, binds ? reinterpret_cast<void*>(bind_method) : nullptr},
      {0, nullptr},
  };
  PyType_Spec spec = {
      name, sizeof(PatchedOp), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
      slots};
  return PyType_FromSpec(&spec);
}

}  // namespace

PyObject* patched_function_type() {
  static PyObject* type =
      make_type("habana_mp._core.PatchedFunctionBase", "A patched op that does not bind.", false);
  return type;
}

PyObject* patched_method_type() {
  static PyObject* type =
      make_type("habana_mp._core.PatchedMethodBase", "A patched op that binds.", true);
  return type;
}

bool enable_vectorcall(PyObject* object) {
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  const bool has_slot = PyType_Check(object) && type->tp_base != nullptr &&
                        type->tp_base->tp_vectorcall_offset == offsetof(PatchedOp, vectorcall);
  if (!has_slot) {
    PyErr_SetString(PyExc_TypeError, "enable_vectorcall takes a subclass of a type of _core");
    return false;
  }
  const bool binds =
      PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(patched_method_type())) != 0;
  type->tp_vectorcall_offset = offsetof(PatchedOp, vectorcall);
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | (binds ? Py_TPFLAGS_METHOD_DESCRIPTOR : 0UL);
  PyType_Modified(type);
  return true;
}

}  // namespace habana_mp
