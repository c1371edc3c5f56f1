// Notifies the listeners of a call of a patched op. Called only while there are any.
#pragma once

#include "convert/arguments.h"
#include "convert/patched_op.h"
#include "listen/watched_call.h"
#include "policy/decide.h"

namespace habana_mp {

struct DecidedCall {
  const PatchedOp& op;
  const Arguments& arguments;
  const Decision& decision;
  bool casting;
  Py_ssize_t positional;
  PyObject* kwnames;
};

// Throws what a listener throws (a closed pipe, an interrupt).
void notify_begin(listen::WatchedCall& watched, const DecidedCall& call);
// Its result may be null.
void notify_end(listen::WatchedCall& watched, PyObject* result);

}  // namespace habana_mp
