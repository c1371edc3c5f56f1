// Whether this thread constructs a module, whose parameters and buffers are to be those that it has
// without a conversion (D45).
//
// torch.nn.Module.__init__ is called when a construction begins, and nothing is when it ends. So
// the beginning sets a flag, and who is about to cast looks, while the flag is set, whether code of
// a construction is on the Python stack; if not, the flag goes. Nothing has to be undone after an
// exception, and torch.compile has nothing to guard.
#pragma once

#include <torch/csrc/python_headers.h>

namespace habana_mp {

inline constinit thread_local bool may_construct = false;

// The walk along the stack, which resets the flag where it finds nothing. With the GIL.
bool finds_construction();

inline bool constructs_module() { return may_construct && finds_construction(); }

// Counts `code` as code of constructions from now on, for good; with `of` where its first argument
// is an instance: a mixin may be a class of its own as well, and a decorator runs for other
// functions. With the GIL.
void add_construction_code(PyCodeObject* code, PyObject* of = nullptr);

}  // namespace habana_mp
