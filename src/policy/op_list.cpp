// The reader of entries and of list files. See op_list.h.
#include "policy/op_list.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

namespace habana_mp {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kBlanks = " \t\v\f";

std::string_view trim(std::string_view text) {
  const std::size_t from = text.find_first_not_of(kBlanks);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(kBlanks) - from + 1);
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// UTF-8 characters: its continuation bytes do not count.
std::size_t count_characters(std::string_view line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
  }));
}

// Reads lines, and raises what is wrong with the one at hand.
class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : rest_(text), path_(path) {}

  // The next line without its end: LF, CR LF or CR.
  bool next(std::string_view& line) {
    if (rest_.empty()) return false;
    ++line_;
    const std::size_t end = rest_.find_first_of("\r\n");
    line = rest_.substr(0, end);
    if (end == std::string_view::npos) {
      rest_ = {};
    } else {
      const bool two = rest_[end] == '\r' && end + 1 < rest_.size() && rest_[end + 1] == '\n';
      rest_.remove_prefix(end + (two ? 2 : 1));
    }
    return true;
  }

  int line() const { return line_; }

  [[noreturn]] void fail(const std::string& reason) const { throw ListError(path_, line_, reason); }

 private:
  std::string_view rest_;
  const std::string& path_;
  int line_ = 0;
};

[[noreturn]] void fail_name(const Reader& reader, std::string_view name) {
  std::string reason = quoted(name) +
                       " is not an op name. A line holds one name, such as mul, mul.Tensor, "
                       "mul@float16 or mul in encoder.*";
  const std::size_t colons = name.rfind("::");
  const std::size_t colon = name.find(':');
  const std::size_t dot = name.rfind('.');
  if (colons != std::string_view::npos && is_entry(name.substr(colons + 2))) {
    reason += " (write " + quoted(name.substr(colons + 2)) + ")";
  } else if (colons == std::string_view::npos && is_entry(name.substr(0, colon))) {
    reason += " (leave out " + quoted(name.substr(colon)) + ": the file is one list)";
  } else if (dot != std::string_view::npos && is_entry(name.substr(dot + 1))) {
    reason += " (write " + quoted(name.substr(dot + 1)) + ")";
  }
  reader.fail(reason);
}

// Of a list of edits: the line that said something of an op first, and whether it took it out, for
// each low dtype.
using Edits = std::map<std::pair<std::string, DType>, std::pair<int, bool>>;

void read_line(const Reader& reader, std::string_view line, OpList& list, Edits& edits) {
  if (count_characters(line) > kMaxLineCharacters) {
    reader.fail("the line has more than " + std::to_string(kMaxLineCharacters) +
                " characters. A line holds one op name");
  }
  const std::size_t hash = line.find('#');
  std::string_view name = trim(line.substr(0, hash));
  if (name.empty()) return;

  const bool edit = name.front() == '+' || name.front() == '-';
  const bool removed = name.front() == '-';
  if (edit) name = trim(name.substr(1));
  std::optional<Entry> entry = read_entry(name);
  if (!entry) reader.fail(quoted(name) + kConditionRefused);
  if (!is_op_name(entry->op)) fail_name(reader, name);
  if (!entry->modules.empty() && !is_module_pattern(entry->modules))
    reader.fail(quoted(entry->modules) + kModulesRefused);
  if (list.ops.empty()) {
    list.edits = edit;
  } else if (edit != list.edits) {
    reader.fail(quoted(name) +
                (edit ? " begins with + or -, but the names above do not"
                      : " does not begin with + or -, but the names above do") +
                ". Either every name begins with + or -, and the file edits the default list, or "
                "none does");
  }
  for (const DType low : kLowDTypes) {
    if (!edit || (entry->low != DType::Other && entry->low != low)) continue;
    const std::pair key{written({.op = entry->op, .modules = entry->modules}), low};
    const auto [earlier, is_new] = edits.try_emplace(key, reader.line(), removed);
    if (!is_new && earlier->second.second != removed) {
      reader.fail(quoted(name) + " is " + (removed ? "taken out" : "added") + " here and " +
                  (removed ? "added" : "taken out") + " in line " +
                  std::to_string(earlier->second.first));
    }
  }
  entry->file = list.path;
  entry->line = reader.line();
  if (hash != std::string_view::npos) entry->comment = trim(line.substr(hash + 1));
  list.ops.push_back({std::move(*entry), removed});
}

}  // namespace

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escape;
    }
  }
  if (text.size() > kShown) out += "...";
  return out + "'";
}

bool is_op_name(std::string_view text) {
  const std::size_t dot = text.find('.');
  const auto plain = [](std::string_view part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), is_name_character);
  };
  if (dot == std::string_view::npos) return plain(text);
  return plain(text.substr(0, dot)) && plain(text.substr(dot + 1));
}

std::string_view base_name(std::string_view name) { return name.substr(0, name.find('.')); }

bool is_module_pattern(std::string_view text) {
  const auto fits = [](char c) { return is_name_character(c) || c == '-' || c == '*' || c == '.'; };
  return !text.empty() && text.front() != '.' && text.back() != '.' &&
         text.find("..") == std::string_view::npos && std::all_of(text.begin(), text.end(), fits);
}

std::optional<Entry> read_entry(std::string_view text) {
  std::string_view op = text, modules;
  const std::size_t blank = text.find_first_of(kBlanks);
  if (blank != std::string_view::npos) {
    const std::string_view behind = trim(text.substr(blank));
    constexpr std::string_view kIn = "in";
    // A line of something else is no op name.
    const bool limits = behind.starts_with(kIn) && behind.size() > kIn.size() &&
                        kBlanks.find(behind[kIn.size()]) != std::string_view::npos;
    if (limits) {
      op = text.substr(0, blank);
      modules = trim(behind.substr(kIn.size()));
    }
  }
  const std::size_t at = op.find('@');
  DType low = DType::Other;
  if (at != std::string_view::npos) {
    low = low_dtype_named(op.substr(at + 1));
    if (low == DType::Other) return std::nullopt;
  }
  return Entry{.op = std::string(op.substr(0, at)), .low = low, .modules = std::string(modules)};
}

std::string written(const Entry& entry) {
  std::string text = entry.op;
  if (entry.low != DType::Other) text += std::string("@") + dtype_name(entry.low);
  if (!entry.modules.empty()) text += " in " + entry.modules;
  return text;
}

std::string place(const Entry& entry) {
  return entry.line > 0 ? entry.file + ":" + std::to_string(entry.line) : entry.file;
}

bool is_entry(std::string_view text) {
  const std::optional<Entry> entry = read_entry(text);
  return entry && is_op_name(entry->op) &&
         (entry->modules.empty() || is_module_pattern(entry->modules));
}

OpList parse_op_list(std::string_view text, const std::string& path, std::optional<Action> list,
                     std::vector<ListError>* mistakes) {
  if (text.size() > kMaxListBytes)
    throw ListError(path, 1, "the file is larger than 1 MiB. A list has one op name in each line");
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());

  OpList read{path, {}, false};
  Edits edits;
  Reader reader(text, path);
  std::string_view line;
  while (reader.next(line)) {
    try {
      read_line(reader, line, read, edits);
    } catch (const ListError& error) {
      if (mistakes == nullptr) throw;
      mistakes->push_back(error);
    }
  }
  for (ListedOp& op : read.ops) op.entry.list = list;
  return read;
}

}  // namespace habana_mp
