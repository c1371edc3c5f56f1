// PatchedOp: the callable that stands in the homes of an op while a conversion is in force.
//
// A C type with a vectorcall slot. The interpreter calls the slot; a subclass in Python
// (habana_mp/_patched.py) defines `__call__` as the readable reference of the same rule, which is
// what torch.compile traces, because it does not know the slot.
#pragma once

#include <torch/csrc/python_headers.h>

#include <string>

#include "policy/decide.h"
#include "convert/arguments.h"

namespace habana_mp {

struct PatchedOp {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* original;  // what the homes held
  PyObject* told;      // what __torch_function__ is told of: for operators the method of that name
  CallForm form;
  Rule rule;    // of the conversion in force
  bool active;  // false: behave as the original (before a conversion, after revert, not concerned
                // by this one)
  std::string* rule_text;  // which list line decided, for the detailed log
  std::string* repr;       // of the original, made at the first log line
  // For the report: the op's name, found at its first call, and what tells this rule from others.
  std::uint32_t name_number;
  std::uint32_t context;
};

// D19: what runs inside an op of the lower or the fp32 list gets no rule of its own.
inline bool is_atomic(const PatchedOp& op) {
  return op.rule.listed && (op.rule.action == Action::Lower || op.rule.action == Action::Fp32);
}

// The two base types: the second binds to an instance as methods and Python functions do (D16). New
// references.
PyObject* patched_function_type();
PyObject* patched_method_type();

// Lets the interpreter call instances of a Python subclass through the C slot although it defines
// `__call__`. Raises TypeError (and returns false) for a type whose base has no slot of ours.
bool enable_vectorcall(PyObject* type);

}  // namespace habana_mp
