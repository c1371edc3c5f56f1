// The sinks and the format of the cast log. The only file that knows spdlog.
#include "report/cast_log.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/process_wide.h"
#include "report/listening.h"
#include "report/module_path.h"

namespace habana_mp::report {
namespace {

using Sink = spdlog::sinks::base_sink<spdlog::details::null_mutex>;

// Ends the log, where no text can be written any more.
class CannotWrite final : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Opens a file to append to. A pipe that nobody reads is an error; to wait for a reader would hold
// the GIL.
int opened_to_append(const std::string& path) {
  const int file =
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0) throw std::system_error(errno, std::generic_category(), path);
  ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_NONBLOCK);
  return file;
}

// One write(2) per event to a file opened with O_APPEND. spdlog's own file sink goes through stdio,
// which splits text over its buffer's size into several writes (lines of forked workers would mix),
// keeps what it could not write, and makes missing folders.
class FileSink final : public Sink {
 public:
  explicit FileSink(const std::string& path) : path_(path), file_(opened_to_append(path)) {}
  ~FileSink() override { ::close(file_); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const char* next = line.data();
    for (std::size_t left = line.size(); left > 0;) {
      const ssize_t written = ::write(file_, next, left);
      if (written < 0) {
        if (errno == EINTR) continue;
        throw CannotWrite(path_ + ": " + std::generic_category().message(errno));
      }
      next += written;
      left -= static_cast<std::size_t>(written);
    }
  }
  void flush_() override {}

  const std::string path_;
  const int file_;
};

class WriterSink final : public Sink {
 public:
  explicit WriterSink(Writer writer) : writer_(std::move(writer)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const std::string why = writer_({line.data(), line.size()});
    if (!why.empty()) throw CannotWrite(why);
  }
  void flush_() override {}

  const Writer writer_;
};

struct OpenLog {
  spdlog::logger logger;
  OnFailure on_failure;
  Filter filter;
  std::uint64_t lines = 0;  // with the GIL
};

bool any_matches(const std::vector<std::string>& patterns, const std::string& text) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
  });
}

// Whether a path, or one that it lies below, is meant.
bool inside_any(const std::vector<std::string>& patterns, const std::string& module) {
  std::string path(ModulePath(module).path);
  for (;;) {
    if (any_matches(patterns, path)) return true;
    const std::size_t dot = path.rfind('.');
    if (dot == std::string::npos) return false;
    path.resize(dot);
  }
}

bool passes(OpenLog& log, const Call& call) {
  const Filter& filter = log.filter;
  if (filter.first != 0 && log.lines >= filter.first) return false;
  if (!filter.ops.empty() && !any_matches(filter.ops, call.texts->name())) return false;
  if (!filter.modules.empty() && !inside_any(filter.modules, (*call.where)().first)) return false;
  ++log.lines;
  return true;
}

std::shared_ptr<OpenLog>& open_log() { return process_wide<std::shared_ptr<OpenLog>>(); }

void put(std::string_view text) {
  // A writer that itself runs logged ops (a sys.stdout of the user's) would never end. Per thread,
  // so that a fork finds no trace of the others.
  thread_local bool writing = false;
  if (writing) return;
  // A share of it: a writer may let other threads run, and they may close the log.
  const std::shared_ptr<OpenLog> to = open_log();
  if (!to) return;
  struct Writing {
    Writing() { writing = true; }
    ~Writing() { writing = false; }
  } const guard;
  try {
    to->logger.log(spdlog::level::info, spdlog::string_view_t(text.data(), text.size()));
  } catch (const CannotWrite& error) {
    if (open_log() != to) return;  // another thread has closed it
    close();
    if (to->on_failure) to->on_failure(error.what());
  }
}

// Text with its control characters as Python writes them: \n, \x1b.
void append_escaped(spdlog::memory_buf_t& text, std::string_view part) {
  const auto out = std::back_inserter(text);
  for (std::size_t i = 0; i < part.size(); ++i) {
    const auto byte = static_cast<unsigned char>(part[i]);
    if (byte == '\n') {
      fmt::format_to(out, "\\n");
    } else if (byte < 0x20 || byte == 0x7F) {
      fmt::format_to(out, "\\x{:02x}", byte);
    } else if (byte == 0xC2 && i + 1 < part.size() &&
               static_cast<unsigned char>(part[i + 1]) < 0xA0) {  // U+0080 to U+009F
      fmt::format_to(out, "\\x{:02x}", static_cast<unsigned char>(part[++i]));
    } else {
      text.push_back(part[i]);
    }
  }
}

void append_detail(const Call& call, spdlog::memory_buf_t& text) {
  const auto out = std::back_inserter(text);
  std::string_view separator = "\n    ";
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (!call.decision.casts(call.arguments[i])) continue;
    fmt::format_to(out, "{}", separator);
    append_escaped(text, call.texts->argument(i));
    fmt::format_to(out, ": {} -> {}", dtype_name(call.arguments[i].dtype),
                   dtype_name(call.decision.to));
    separator = ", ";
  }
  if (!call.casting) fmt::format_to(out, "{}nothing to cast", separator);
  const auto [module, source] = (*call.where)();
  // The target of an in-place call decides, whatever list the op is in (D11).
  std::string rule = call.decision.cause == Cause::InPlace ? "in place" : call.texts->rule();
  if (call.decision.cause == Cause::NoLowKernel) rule.clear();  // the line begins with it
  for (const std::string_view part :
       {std::string_view(rule), std::string_view(module), std::string_view(source)}) {
    if (part.empty()) continue;
    fmt::format_to(out, " | ");
    append_escaped(text, part);
  }
}

class CastLog final : public Listener {
 public:
  CastLog() : Listener(Hears::Decisions) {}

  void decided(const Call& call) override {
    const Level now = level();
    const Cause cause = call.decision.cause;
    if (now == Level::Off || !worth_a_line(cause, call.casting)) return;
    const std::shared_ptr<OpenLog> log = open_log();
    if (!log || !passes(*log, call)) return;
    const bool listed =
        cause == Cause::Lower || is_int8(cause) || cause == Cause::Fp32 || cause == Cause::RestFp32;
    spdlog::memory_buf_t text;
    fmt::format_to(std::back_inserter(text), "casting  ");
    append_escaped(text, call.texts->original());
    fmt::format_to(std::back_inserter(text), "{}{}", listed ? " " : "  to  ",
                   is_int8(cause) ? std::string("to_") + cause_name(cause)
                                  : std::string(cast_name(call.decision.to)));
    if (cause == Cause::NoLowKernel)
      fmt::format_to(std::back_inserter(text), " | {}", call.texts->rule());
    if (now == Level::Detail) append_detail(call, text);
    put({text.data(), text.size()});
  }
};

const std::shared_ptr<CastLog>& cast_log() {
  static const auto& log = *new std::shared_ptr<CastLog>(std::make_shared<CastLog>());
  return log;
}

}  // namespace

void open(Level level, const std::string& path, Filter filter, Writer writer,
          OnFailure on_failure) {
  if (level == Level::Off) return close();
  spdlog::sink_ptr sink;
  if (path.empty()) {
    sink = std::make_shared<WriterSink>(std::move(writer));
  } else {
    sink = std::make_shared<FileSink>(path);
  }
  auto opened = std::make_shared<OpenLog>(OpenLog{spdlog::logger("habana_mp", std::move(sink)),
                                                  std::move(on_failure), std::move(filter)});
  opened->logger.set_pattern("%v");
  // spdlog calls this while it handles what a sink threw, which it would only print to stderr: hand
  // it on to put().
  opened->logger.set_error_handler([](const std::string&) { throw; });
  open_log() = std::move(opened);
  current_level.store(static_cast<int>(level), std::memory_order_relaxed);
  unlisten(*cast_log());
  listen(cast_log());
}

void close() {
  current_level.store(static_cast<int>(Level::Off), std::memory_order_relaxed);
  unlisten(*cast_log());
  open_log().reset();
}

void write_text(std::string_view text) {
  if (level() != Level::Off) put(text);
}

}  // namespace habana_mp::report
