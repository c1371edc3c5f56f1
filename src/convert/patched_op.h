// PatchedOp: the callable that the homes of an op hold while a conversion is in force.
//
// A C type with a vectorcall slot. The interpreter calls the slot; a subclass in Python
// (habana_mp/_convert/patched_op.py) defines `__call__` as the readable reference of the same rule,
// which is what torch.compile traces, because it does not know the slot.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "call/packed_call.h"
#include "convert/call_form.h"
#include "policy/decide.h"
#include "policy/policy.h"
#include "scope/casts_off.h"

namespace habana_mp {

struct PatchedOp {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* original;           // what the homes held
  PyObject* override_function;  // what __torch_function__ gets: of operators the method's name
  CallForm form;
  Layout layout;  // of a weight that is packed for it
  Rule rule;      // of the conversion in force
  bool active;    // false: behave as the original (before a conversion, after revert, not concerned
                  // by this one)
  std::string* rule_text;  // which list line decided
  std::string* name;       // as lists spell it
  std::string* repr;       // of the original, made at the first log line
  // For the report, made at the first call: the number of the name, and of what decides.
  std::uint32_t name_number;
  std::uint64_t decider_id;
  // Of a function that the user registered, in regions of autocast: the policy that its rule is of.
  std::shared_ptr<const Policy>* region_policy;
};

// The slot: one call, decided, its arguments cast, and the original called.
PyObject* vectorcall(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                     PyObject* kwnames);

// D19: what runs inside an op of the lower or the fp32 list gets no rule of its own.
inline bool is_atomic(const PatchedOp& op) {
  return op.rule.listed && (op.rule.action == Action::Lower || op.rule.action == Action::Fp32);
}

// Whether the casts of the op are off on this thread.
inline bool is_off(const PatchedOp& op) {
  return op.region_policy == nullptr ? convert_off() : casts_off();
}

}  // namespace habana_mp
