// The cast log: the text of its lines (F108 to F111, D25, D26), its file, its writer.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "report/cast_log.h"
#include "report/listening.h"

using habana_mp::Cause;
using habana_mp::DType;
namespace report = habana_mp::report;

namespace {

constexpr auto LAYER_NORM = "<function layer_norm at 0x7feaab2a4320>";
constexpr auto MUL = "<method '__mul__' of 'torch._C._TensorBase' objects>";

struct CastArgument {
  std::string argument;
  DType from;
};

// A call of an op in words of its own.
struct Said final : report::CallTexts {
  std::string op;
  std::vector<CastArgument> casts;
  std::string of_rule;

  std::string name() const override { return op; }
  std::string original() const override { return op; }
  std::string rule() const override { return of_rule; }
  std::string argument(std::size_t i) const override { return casts[i].argument; }
  std::shared_ptr<const habana_mp::Policy> policy() const override { return nullptr; }
};

// Tells the log of a call that is about to run.
void tell(std::string_view op, DType to, Cause cause, const std::vector<CastArgument>& casts = {},
          std::string_view rule = {}, std::string_view module = {}, std::string_view source = {}) {
  Said said;
  said.op = op;
  said.casts = casts;
  said.of_rule = rule;
  std::vector<habana_mp::Arg> arguments;
  for (const CastArgument& cast : casts) {
    arguments.push_back({cast.from, false, habana_mp::Role::Input});
  }
  report::Call call;
  call.decision = {to, cause, habana_mp::role_bit(habana_mp::Role::Input)};
  call.casting = !casts.empty();
  call.arguments = arguments;
  const report::Where where = [&] { return std::pair<std::string, std::string>(module, source); };
  call.texts = &said;
  call.where = &where;
  report::notify_decided(call);
}

// A log whose writer never fails.
void open_to(report::Level level, const std::function<void(std::string_view)>& write) {
  const auto writer = [write](std::string_view text) {
    write(text);
    return std::string();
  };
  report::open(level, "", {}, writer, nullptr);
}

void open_file(report::Level level, const std::string& path) {
  report::open(level, path, {}, nullptr, nullptr);
}

// What the writer got while it lives; the log is off afterwards.
struct Written {
  explicit Written(report::Level level) {
    open_to(level, [this](std::string_view text) { texts.emplace_back(text); });
  }
  ~Written() { report::close(); }
  std::vector<std::string> texts;
};

struct LogFile {
  LogFile()
      : path(std::filesystem::temp_directory_path() / ("cast_log_" + std::to_string(getpid()))) {
    std::filesystem::remove(path);
  }
  ~LogFile() {
    report::close();
    std::filesystem::remove(path);
  }
  std::string text() const {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> lines() const {
    std::ifstream file(path);
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }
  const std::string path;
};

}  // namespace

TEST_CASE("a filter lets ops and modules through, and ends the log after a number of lines") {
  const auto lines = [](report::Filter filter) {
    std::vector<std::string> texts;
    const auto writer = [&](std::string_view text) {
      texts.emplace_back(text.substr(9, text.find(' ', 9) - 9));
      return std::string();
    };
    report::open(report::Level::Casts, "", std::move(filter), writer, nullptr);
    const std::vector<CastArgument> casts{{"0", DType::Float32}};
    for (const char* op : {"conv1d", "conv2d", "softmax"}) {
      for (const char* module : {"Net: encoder.layers.0", "Net: decoder", "", "Net"}) {
        tell(op, DType::BFloat16, Cause::Lower, casts, "", module);
      }
    }
    report::close();
    return texts;
  };
  using Lines = std::vector<std::string>;
  CHECK(lines({}).size() == 12);
  CHECK(lines({.ops = {"softmax"}, .modules = {}}) == Lines(4, "softmax"));
  CHECK(lines({.ops = {"conv*"}, .modules = {"encoder.*"}}) == Lines{"conv1d", "conv2d"});
  CHECK(lines({.ops = {}, .modules = {"encoder"}}) == Lines{"conv1d", "conv2d", "softmax"});
  CHECK(lines({.ops = {"softmax", "conv1d"}, .modules = {"decoder"}}) ==
        Lines{"conv1d", "softmax"});
  CHECK(lines({.ops = {}, .modules = {"enc"}}).empty());
  CHECK(lines({.ops = {"none"}, .modules = {}}).empty());
  CHECK(lines({.ops = {"conv2d"}, .modules = {}, .first = 3}) == Lines(3, "conv2d"));
}

TEST_CASE("one line for each cause, as the guides print it") {
  struct Case {
    Cause cause;
    std::string_view op;
    DType to;
    const char* line;
  };
  const auto cases = std::to_array<Case>({
      {Cause::Lower, LAYER_NORM, DType::BFloat16,
       "casting  <function layer_norm at 0x7feaab2a4320> to_bf16\n"},
      {Cause::Lower, LAYER_NORM, DType::Float16,
       "casting  <function layer_norm at 0x7feaab2a4320> to_fp16\n"},
      {Cause::Fp32, LAYER_NORM, DType::Float32,
       "casting  <function layer_norm at 0x7feaab2a4320> to_fp32\n"},
      {Cause::RestFp32, LAYER_NORM, DType::Float32,
       "casting  <function layer_norm at 0x7feaab2a4320> to_fp32\n"},
      {Cause::Promote, MUL, DType::Float32,
       "casting  <method '__mul__' of 'torch._C._TensorBase' objects>  to  to_fp32\n"},
      {Cause::InPlace, MUL, DType::BFloat16,
       "casting  <method '__mul__' of 'torch._C._TensorBase' objects>  to  to_bf16\n"},
      {Cause::FirstInput, MUL, DType::Float16,
       "casting  <method '__mul__' of 'torch._C._TensorBase' objects>  to  to_fp16\n"},
  });
  for (const Case& c : cases) {
    CAPTURE(c.line);
    const Written written(report::Level::Casts);
    tell(c.op, c.to, c.cause, {{"0", c.to == DType::Float32 ? DType::BFloat16 : DType::Float32}});
    CHECK(written.texts == std::vector<std::string>{c.line});
  }
}

TEST_CASE("D25: which calls have a line") {
  for (const Cause cause : {Cause::Lower, Cause::Fp32, Cause::Promote}) {
    CHECK(report::worth_a_line(cause, true));
    CHECK(report::worth_a_line(cause, false));
  }
  for (const Cause cause : {Cause::InPlace, Cause::FirstInput, Cause::RestFp32}) {
    CHECK(report::worth_a_line(cause, true));
    CHECK_FALSE(report::worth_a_line(cause, false));
  }
  CHECK_FALSE(report::worth_a_line(Cause::None, false));
}

TEST_CASE("D26: detail stands on a line of its own, under the guide's") {
  const std::vector<CastArgument> casts{{"0", DType::Float32}, {"tensors[1]", DType::Float16}};
  const std::string first = "casting  <function layer_norm at 0x7feaab2a4320> to_bf16\n";
  struct Case {
    std::vector<CastArgument> casts;
    std::string_view rule, module, source;
    const char* detail;
  };
  const auto cases = std::to_array<Case>({
      {casts, "lower: my.txt:12", "Net: enc.fc1", "train.py:31",
       "    0: float32 -> bfloat16, tensors[1]: float16 -> bfloat16"
       " | lower: my.txt:12 | Net: enc.fc1 | train.py:31\n"},
      {casts, "lower: my.txt:12", "", "",
       "    0: float32 -> bfloat16, tensors[1]: float16 -> bfloat16 | lower: my.txt:12\n"},
      {{}, "default", "", "train.py:31", "    nothing to cast | default | train.py:31\n"},
      {{}, "", "", "", "    nothing to cast\n"},
  });
  for (const Case& c : cases) {
    CAPTURE(c.detail);
    const Written written(report::Level::Detail);
    tell(LAYER_NORM, DType::BFloat16, Cause::Lower, c.casts, c.rule, c.module, c.source);
    CHECK(written.texts == std::vector<std::string>{first + c.detail});
  }
}

TEST_CASE("D26: the detail of an in-place call names no list") {
  const Written written(report::Level::Detail);
  const std::vector<CastArgument> casts{{"1", DType::Float32}};
  tell(MUL, DType::BFloat16, Cause::InPlace, casts, "promote: my.txt:12", "", "train.py:31");
  CHECK(written.texts ==
        std::vector<std::string>{
            "casting  <method '__mul__' of 'torch._C._TensorBase' objects>  to  to_bf16\n"
            "    1: float32 -> bfloat16 | in place | train.py:31\n"});
}

TEST_CASE("braces and percent signs of an op are no format") {
  const Written written(report::Level::Casts);
  tell("<{} %v {0:d} %%>", DType::Float32, Cause::Fp32);
  CHECK(written.texts == std::vector<std::string>{"casting  <{} %v {0:d} %%> to_fp32\n"});
}

TEST_CASE("off: the level says so and nothing is written") {
  Written written(report::Level::Casts);
  CHECK(report::level() == report::Level::Casts);
  SUBCASE("closed") { report::close(); }
  SUBCASE("opened as off") { open_file(report::Level::Off, ""); }
  CHECK(report::level() == report::Level::Off);
  tell(MUL, DType::Float32, Cause::Promote);
  report::write_text("text");
  report::close();
  CHECK(written.texts.empty());
}

TEST_CASE("a file is appended to, and each line is there as soon as it is written") {
  const LogFile file;
  std::ofstream(file.path) << "before\n";
  open_file(report::Level::Casts, file.path);
  report::write_text("hmp:opt_level O1");
  CHECK(file.text() == "before\nhmp:opt_level O1\n");
  tell(MUL, DType::Float32, Cause::Promote);
  CHECK(file.lines().size() == 3);
  open_file(report::Level::Casts, file.path);
  report::write_text("again");
  CHECK(file.lines().size() == 4);
}

TEST_CASE("close releases the file") {
  const LogFile file;
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  open_file(report::Level::Casts, file.path);
  open_file(report::Level::Detail, file.path);
  CHECK(open_files() == before + 1);
  report::close();
  CHECK(open_files() == before);
}

TEST_CASE("a file that cannot be opened leaves the former log open") {
  const Written written(report::Level::Casts);
  struct Case {
    const char* path;
    int error;
  };
  for (const Case& c : {Case{"/nowhere/casts.log", ENOENT}, Case{"/tmp", EISDIR}}) {
    int error = 0;
    try {
      open_file(report::Level::Detail, c.path);
    } catch (const std::system_error& e) {
      error = e.code().value();
    }
    CHECK(error == c.error);
    CHECK(report::level() == report::Level::Casts);
  }
  report::write_text("still there");
  CHECK(written.texts == std::vector<std::string>{"still there\n"});
}

TEST_CASE("a log that cannot be written says so once and is closed (D47)") {
  std::vector<std::string> failures;
  std::string path;
  std::string why;
  SUBCASE("a full disk") {
    path = "/dev/full";
    why = "/dev/full: No space left on device";
  }
  SUBCASE("a writer that cannot") { why = "closed pipe"; }
  report::open(
      report::Level::Casts, path, {}, [&](std::string_view) { return why; },
      [&](const std::string& failure) {
        failures.push_back(failure);
        CHECK(report::level() == report::Level::Off);
      });
  report::write_text("a");
  report::write_text("b");
  tell(MUL, DType::Float32, Cause::Promote);
  CHECK(failures == std::vector<std::string>{why});
  CHECK(report::level() == report::Level::Off);
}

TEST_CASE("a pipe that nobody reads cannot be opened, and nobody waits for a reader") {
  const LogFile file;
  REQUIRE(mkfifo(file.path.c_str(), 0600) == 0);
  CHECK_THROWS_AS(open_file(report::Level::Casts, file.path), std::system_error);
  const int reader = ::open(file.path.c_str(), O_RDONLY | O_NONBLOCK);
  open_file(report::Level::Casts, file.path);
  report::write_text("a");
  char text[8] = {};
  CHECK(::read(reader, text, sizeof text) == 2);
  CHECK(std::string(text) == "a\n");
  ::close(reader);
}

TEST_CASE("control characters are escaped") {
  Written written(report::Level::Detail);
  tell("op\n\x1b[31m", DType::BFloat16, Cause::Lower, {}, "lower: a\tb.txt:1",
       "Net: a\nb\x7f \xc3\xa9\xc2\x9b", "train.py\r:3");
  CHECK(written.texts ==
        std::vector<std::string>{"casting  op\\n\\x1b[31m to_bf16\n    nothing to cast | "
                                 "lower: a\\x09b.txt:1 | Net: a\\nb\\x7f \xc3\xa9\\x9b | "
                                 "train.py\\x0d:3\n"});
}

TEST_CASE("what a writer throws reaches the caller, and the log goes on") {
  int calls = 0;
  open_to(report::Level::Casts, [&](std::string_view) {
    if (++calls == 1) throw std::runtime_error("closed pipe");
    if (calls == 2) throw 7;
  });
  CHECK_THROWS_WITH_AS(report::write_text("a"), "closed pipe", std::runtime_error);
  CHECK_THROWS_AS(report::write_text("b"), int);
  report::write_text("c");
  CHECK(calls == 3);
  report::close();
}

TEST_CASE("a writer that runs logged ops does not call itself") {
  int calls = 0;
  open_to(report::Level::Casts, [&](std::string_view) {
    ++calls;
    report::write_text("of the writer");
  });
  report::write_text("a");
  report::write_text("b");
  CHECK(calls == 2);
  report::close();
}

TEST_CASE("a writer may close or replace the log that calls it") {
  std::vector<std::string> second;
  open_to(report::Level::Casts, [&](std::string_view) {
    open_to(report::Level::Casts, [&](std::string_view text) { second.emplace_back(text); });
  });
  report::write_text("a");
  report::write_text("b");
  CHECK(second == std::vector<std::string>{"b\n"});
  report::close();
}

TEST_CASE("forked workers write whole lines, each once") {
  const LogFile file;
  open_file(report::Level::Casts, file.path);
  report::write_text("parent");
  constexpr int WORKERS = 4;
  constexpr int LINES = 200;
  // Longer than the buffer of stdio and than a page.
  const std::string tail(5000, 'x');
  std::vector<pid_t> workers;
  for (int worker = 0; worker < WORKERS; ++worker) {
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      for (int line = 0; line < LINES; ++line) {
        report::write_text(std::to_string(worker) + " " + std::to_string(line) + " " + tail);
      }
      _exit(0);
    }
    workers.push_back(pid);
  }
  for (const pid_t pid : workers) {
    int status = 1;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
  }
  std::set<std::string> expected{"parent"};
  for (int worker = 0; worker < WORKERS; ++worker) {
    for (int line = 0; line < LINES; ++line) {
      expected.insert(std::to_string(worker) + " " + std::to_string(line) + " " + tail);
    }
  }
  const std::vector<std::string> lines = file.lines();
  CHECK(lines.size() == expected.size());
  CHECK(std::set<std::string>(lines.begin(), lines.end()) == expected);
}
