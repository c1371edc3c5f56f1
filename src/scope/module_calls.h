// What holds inside calls of modules: the policy that set_policies has given a module, and who
// watches.
//
// It is entered and left in the C slot of Module._call_impl, which every call of a module passes,
// so that no exception and no change of hooks can come between. Hooks of torch would not do: those
// behind a forward do not run after a KeyboardInterrupt.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstdint>

namespace habana_mp {

// Who needs the slot.
enum class ModuleCalls : std::uint8_t { Policies = 1, Watched = 2, Found = 4 };

// `call_impl` is torch's function; the first one is surrounded, whatever is in its place later. Its
// slot is torch's own while nobody needs it. With the GIL.
void surround_module_calls(PyObject* call_impl, ModuleCalls who, bool on);

// The hooks that hold the policies: instances of this class among _forward_pre_hooks, for good. Its
// region(module) returns what to enter, or None, and inside(result) what a generator becomes.
void set_policy_hook(PyTypeObject* type);

// Asked for the hook of a module that has none of its own; it returns one or None. Null: nobody is.
void set_policy_finder(PyObject* finder);

// Called as a call begins and ends.
struct ModuleWatch {
  void (*enter)(PyObject* module);
  void (*leave)(PyObject* module);
};
void set_module_watch(ModuleWatch watch);

}  // namespace habana_mp
