#include "convert/patched_op.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <structmember.h>

#include "report/listening.h"
#include "convert/tell.h"
#include "scope/casts_off.h"
#include "watch/observer.h"
#include "convert/overrides.h"
#include "base/python_error.h"
#include "cast/numbers.h"

namespace habana_mp {
namespace {

// Whether the frame that called is torch's own code that says what an op means while torch traces
// it: decompositions, references, meta functions, compiler patterns. They describe the original op;
// a cast among them would change its meaning.
bool called_by_decomposition() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return false;
  PyCodeObject* code = PyFrame_GetCode(frame);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const std::string_view path = file == nullptr ? "" : file;
  Py_DECREF(code);
  for (const std::string_view part :
       {"/torch/_decomp/", "/torch/_refs/", "/torch/_prims/", "/torch/_prims_common/",
        "/torch/_meta_registrations.py", "/torch/_subclasses/", "/torch/_inductor/"}) {
    if (path.find(part) != std::string_view::npos) return true;
  }
  return false;
}

PyObject* raise_unsafe(const PatchedOp& op) {  // D31, F184-F186, F190
  PyErr_Format(
      PyExc_RuntimeError,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "The policy in force (%s) refuses %R because its backward can leave the range of the lower "
      "precision. Use "
      "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe, or put the call in "
      "hmp.disable_casts().",
      op.rule_text->c_str(), op.original);
  return nullptr;
}

PyObject* call_patched(const PatchedOp& op, PyObject* const* args, std::size_t nargsf,
                       PyObject* kwnames) {
  const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
  Arguments arguments;
  arguments.find(op.form, args, positional, kwnames);
  if (op.rule.action == Action::Error) return raise_unsafe(op);
  // What stands in for a tensor (an fx proxy) takes the call as it was written: a cast beside it
  // would turn the parameters of a traced module into constants.
  if (!arguments.overriders().empty()) return call_original(op, arguments, args, nargsf, kwnames);

  const Decision decision = decide(op.rule, arguments.described(), arguments.explicit_dtype());
  bool casting = false;
  bool traced = false;
  bool compiling = false;
  for (std::size_t i = 0; i < arguments.size() && decision.cause != Cause::None; ++i) {
    if (!decision.casts(arguments.described()[i])) continue;
    casting = true;
    traced = traced || is_traced(arguments.tensor(i).object);
    compiling = compiling || is_fake(arguments.tensor(i).object);
  }
  if (traced && called_by_decomposition())
    return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  const bool relay = take_relayed(op);
  watch::Watch watch;
  if (report::anyone_listens() && !compiling && (casting || !relay)) {
    log_call(op, arguments, decision, casting, positional, kwnames);
    watch_call(watch, op, arguments, decision);
  }
  if (!casting) {
    PyObject* result = call_original(op, arguments, args, nargsf, kwnames);
    end_watch(watch, result);
    return result;
  }

  const auto call_with_casts = [&](bool cached, bool& again) -> PyObject* {
    CastArguments cast(args, positional + (kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames)));
    if (!cast.apply(op.form, arguments, decision, cached)) return nullptr;
    PyObject* result = call_original(
        op, arguments, cast.data(),
        static_cast<std::size_t>(positional) | PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
    again = result != nullptr && cast.gave_away_copy(result);
    return result;
  };
  bool again = false;
  PyObject* result = call_with_casts(/*cached=*/true, again);
  if (again) {  // a view, or dropout in eval: the caller may write to what it gets
    Py_DECREF(result);
    watch.forget_casts();
    result = call_with_casts(/*cached=*/false, again);
  }
  end_watch(watch, result);
  return result;
}

// What is left of a call where nothing can be cast: most calls of a converted model, so it is kept
// short. Nobody listening, no override by a mode, no tensor subclass, and every eligible tensor in
// one dtype that the rule accepts as it is.
bool is_settled(const PatchedOp& op, PyObject* const* args, Py_ssize_t count) {
  if (report::anyone_listens() || op.rule.action == Action::Error ||
      at::impl::torch_function_mode_enabled()) {
    return false;
  }
  DTypes seen;
  return seen.add(args, count) && settled(op.rule, seen.mask());
}

// A call while casts are off: nothing is cast, but what overrides the op is told of torch's own
// function all the same.
PyObject* call_uncast(const PatchedOp& op, PyObject* const* args, std::size_t nargsf,
                      PyObject* kwnames) {
  const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
  Arguments arguments;
  arguments.find(op.form, args, positional, kwnames);
  return call_original(op, arguments, args, nargsf, kwnames);
}

PyObject* vectorcall(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                     PyObject* kwnames) {
  const auto& op = *reinterpret_cast<PatchedOp*>(callable);
  if (!op.active) return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  const Py_ssize_t count =
      PyVectorcall_NARGS(nargsf) + (kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames));
  if (is_settled(op, args, count)) {  // casts on or off, so that is not asked
    const CastsOffGuard guard(op.form.python && is_atomic(op));
    return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  }
  const bool off = casts_off();
  if (off && !at::impl::torch_function_mode_enabled() && DTypes().add(args, count)) {
    return PyObject_Vectorcall(op.original, args, nargsf, kwnames);
  }
  try {
    return off ? call_uncast(op, args, nargsf, kwnames) : call_patched(op, args, nargsf, kwnames);
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

PyObject* new_op(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {
      "original",         "told",       "in_place",   "norm",      "python",
      "overridable",      "out",        "flag",       "flag_name", "flag_target",
      "flag_target_name", "statistics", "contiguous", nullptr};
  PyObject *original = nullptr, *told = nullptr, *flag_name = Py_None, *flag_target_name = Py_None;
  int in_place = 0, norm = 0, python = 0, overridable = 0, contiguous = 0, out = -1, flag = -1,
      flag_target = 0;
  unsigned statistics = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$ppppiiOiOIp", const_cast<char**>(names),
                                   &original, &told, &in_place, &norm, &python, &overridable, &out,
                                   &flag, &flag_name, &flag_target, &flag_target_name, &statistics,
                                   &contiguous)) {
    return nullptr;
  }
  auto* op = reinterpret_cast<PatchedOp*>(type->tp_alloc(type, 0));
  if (op == nullptr) return nullptr;
  op->vectorcall = vectorcall;
  op->original = Py_NewRef(original);
  op->told = Py_NewRef(told);
  op->form = {
      .in_place = in_place != 0,
      .norm = norm != 0,
      .python = python != 0,
      .overridable = overridable != 0,
      .contiguous = contiguous != 0,
      .out = static_cast<std::int8_t>(out),
      .flag = static_cast<std::int8_t>(flag),
      .flag_target = static_cast<std::int8_t>(flag_target),
      .statistics = statistics,
      .flag_name = flag_name == Py_None ? nullptr : Py_NewRef(flag_name),
      .flag_target_name = flag_target_name == Py_None ? nullptr : Py_NewRef(flag_target_name),
  };
  op->rule = Rule{};
  op->active = false;
  op->rule_text = new std::string;
  op->repr = new std::string;
  op->name_number = op->context = 0;
  return reinterpret_cast<PyObject*>(op);
}

int init_op(PyObject*, PyObject*, PyObject*) { return 0; }

int traverse_op(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<PatchedOp*>(self)->original);
  Py_VISIT(reinterpret_cast<PatchedOp*>(self)->told);
  return 0;
}

int clear_op(PyObject* self) {
  Py_CLEAR(reinterpret_cast<PatchedOp*>(self)->original);
  Py_CLEAR(reinterpret_cast<PatchedOp*>(self)->told);
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
  delete op->repr;
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
  op->context = 0;
  op->active = true;
  return 0;
}

int setattr_op(PyObject* self, PyObject* name, PyObject* value) {
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
  const bool given = PyType_Check(object) && type->tp_base != nullptr &&
                     type->tp_base->tp_vectorcall_offset == offsetof(PatchedOp, vectorcall);
  if (!given) {
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
