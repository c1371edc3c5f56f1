// libFuzzer target for the reader of list files and for the text form of policies: on any bytes
// they return, or throw what Python turns into ValueError, and what they accept round-trips.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "policy/names.h"
#include "policy/op_list.h"
#include "policy/policy.h"

using namespace habana_mp;

namespace {

void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
  }
}

bool is_plain_text(std::string_view text) {
  for (const char c : text) {
    if (c < ' ' || c > '~') return false;
  }
  return true;
}

void read_list(std::string_view text) {
  OpList list;
  try {
    list = parse_op_list(text, "list.txt", Action::Lower);
  } catch (const ListError& error) {
    require(std::string_view(error.what()).starts_with("list.txt:"), "an error says where");
    require(is_plain_text(error.what()), "an error is text that one can read");
    return;
  }
  std::string text_again;
  int last_line = 0;
  for (const ListedOp& op : list.ops) {
    require(is_entry(written(op.entry)), "every name is that of an entry");
    require(op.entry.line > last_line, "lines count up");
    require(list.edits || !op.removed, "only edits take out");
    last_line = op.entry.line;
    text_again += (list.edits ? (op.removed ? "-" : "+") : "") + written(op.entry) + "\n";
  }
  const OpList again = parse_op_list(text_again, "list.txt", Action::Lower);
  require(again.edits == list.edits && again.ops.size() == list.ops.size(),
          "what was read reads again");

  PolicyFields fields{.name = "fuzz", .low_dtype = DType::BFloat16, .rest = Action::Inputs};
  for (std::size_t i = 0; i < list.ops.size(); ++i) {
    require(again.ops[i].entry == list.ops[i].entry, "entries stay");
    fields.entries.push_back(list.ops[i].entry);
  }
  const Policy policy(fields);
  require(Policy::parse(policy.text()) == policy, "the text of a policy reads again");
  for (const ListedOp& op : list.ops) {
    if (op.entry.low == DType::Float16 || !op.entry.modules.empty()) continue;
    require(policy.resolve(op.entry.op).rule.action == Action::Lower, "a listed name has its rule");
  }
}

void read_policy(const std::string& text) {
  try {
    const Policy policy = Policy::parse(text);
    require(Policy::parse(policy.text()) == policy, "an accepted text round-trips");
  } catch (const std::invalid_argument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read_list(text);
  read_policy(text);
  candidates(text);
  return 0;
}
