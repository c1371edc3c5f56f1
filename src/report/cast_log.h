// The cast log: which op was cast to which precision, line by line, as the guides print it (F105 to
// F112). While it is open it is a listener (report/listening.h). It must not know Python, torch or
// how a decision is made.
//
// At Level::Casts a call is one line. Where a list or the rest of O2 decides (F108), and where
// the inputs or the target do, that is promote, in place and first input (F109, F110):
//     casting  <built-in function linear> to_bf16
//     casting  <method '__iadd__' of 'torch._C.TensorBase' objects>  to  to_bf16
// Control characters are escaped: the name of a module must not begin a line or steer a terminal.
// At Level::Detail the same line comes first and an indented one follows (D26), empty parts left
// out:
//         0: float32 -> bfloat16, 1: float32 -> bfloat16 | lower: my.txt:12 | Net: fc1 |
//         train.py:31
//
// Whoever opens, closes or writes holds the GIL, so the log needs no lock, and no fork copies a
// held one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/decide.h"

namespace habana_mp::report {

// habana_mp/_watch/log.py counts its levels by this order.
enum class Level : int { Off, Casts, Detail };

inline std::atomic<int> current_level{static_cast<int>(Level::Off)};

inline Level level() { return static_cast<Level>(current_level.load(std::memory_order_relaxed)); }

// D25: ops that a list decides have a line at every call, the others only where a tensor was cast.
// So has the rest of O2: its ops run inside one another (D19), and each cast then has one line.
constexpr bool worth_a_line(Cause cause, bool something_cast) {
  switch (cause) {
    case Cause::Lower:
    case Cause::WeightInt8:
    case Cause::Int8:
    case Cause::Fp32:
    case Cause::Promote:
      return true;
    case Cause::InPlace:
    case Cause::FirstInput:
    case Cause::RestFp32:
    case Cause::NoLowKernel:
      return something_cast;
    case Cause::None:
      return false;
  }
  return false;
}

// Takes the text of one call, ended by a line feed. Returns why it could not be written, "" where
// it was. What it throws reaches the caller of the op, and the log goes on.
using Writer = std::function<std::string(std::string_view)>;

// Takes why a text could not be written. By then the log is closed (D47).
using OnFailure = std::function<void(const std::string&)>;

// Which calls have a line. The patterns are those of fnmatch(3); of an empty list, all.
struct Filter {
  std::vector<std::string> ops;      // "softmax", "conv*"
  std::vector<std::string> modules;  // paths, with what is below: "encoder.layers.*"
  std::uint64_t first = 0;           // that many lines, and none after them; 0: no end
};

// Sends the log to the file `path` (appended to), or to `writer` where the path is empty. Replaces
// what was open before; where the file cannot be opened, that stays open and std::system_error is
// thrown, with errno.
void open(Level level, const std::string& path, Filter filter, Writer writer, OnFailure on_failure);

// Releases the file or the writer; the level is Off afterwards.
void close();

// Each call and each text leaves in one piece and at once: nothing is held back that a fork could
// write twice or a crash lose. A text that cannot be written closes the log.
void write_text(std::string_view text);

}  // namespace habana_mp::report
