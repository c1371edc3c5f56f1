// Tells the cast log and the report of a call of a patched op. Called only while one of them is on.
#pragma once

#include "convert/arguments.h"
#include "watch/observer.h"
#include "convert/patched_op.h"

namespace habana_mp {

// Nothing where the log is off. Throws what its writer throws (a closed pipe, an interrupt).
void log_call(const PatchedOp& op, const Arguments& arguments, const Decision& decision,
              bool casting, Py_ssize_t positional, PyObject* kwnames);

// Begins to watch the call where a report is open, and ends it with its result, which may be null.
void watch_call(watch::Watch& watch, const PatchedOp& op, const Arguments& arguments,
                const Decision& decision);
void end_watch(watch::Watch& watch, PyObject* result);

}  // namespace habana_mp
