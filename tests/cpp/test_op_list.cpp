// parse_op_list(): the form of a list file (D20, D21), and what its errors say.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "policy/op_list.h"

using namespace habana_mp;

namespace {

std::string names_of(const OpList& list) {
  std::string out;
  for (const ListedOp& op : list.ops) {
    if (!out.empty()) out += ' ';
    if (list.edits) out += op.removed ? '-' : '+';
    out += op.name + "@" + std::to_string(op.line);
  }
  return out;
}

std::string error_of(std::string_view text) {
  try {
    parse_op_list(text, "my.txt");
  } catch (const ListError& error) {
    return error.what();
  }
  return "accepted";
}

struct Accepted {
  const char* id;
  std::string text;
  const char* names;
};

const std::vector<Accepted> kAccepted = {
    {"one name a line (F38)", "mm\nrelu\n", "mm@1 relu@2"},
    {"no final newline", "mm\nrelu", "mm@1 relu@2"},
    {"blank lines", "\n\nmm\n\n \t\nrelu\n\n", "mm@3 relu@6"},
    {"blanks around names (F46)", "  mm \n\trelu\t\n", "mm@1 relu@2"},
    {"CR LF", "mm\r\nrelu\r\n", "mm@1 relu@2"},
    {"CR alone", "mm\rrelu\r", "mm@1 relu@2"},
    {"byte-order mark", "\xEF\xBB\xBFmm\nrelu\n", "mm@1 relu@2"},
    {"comments", "# head\nmm # why\nrelu#why\n   # more\n", "mm@2 relu@3"},
    {"comments in any language", "# \xC3\xA9t\xC3\xA9\nmm\n", "mm@2"},
    {"an empty file is an empty list", "", ""},
    {"a file of comments is an empty list", "# nothing\n", ""},
    {"an overload name (F45)", "pow.Tensor_Scalar\nconv_transpose2d.input\n",
     "pow.Tensor_Scalar@1 conv_transpose2d.input@2"},
    {"underscores and digits", "_convolution\nlog10\n__matmul__\n",
     "_convolution@1 log10@2 __matmul__@3"},
    {"twice in one list (D23)", "mm\nmm\n", "mm@1 mm@2"},
    {"D21 edits", "+mm\n- relu\n", "+mm@1 -relu@2"},
    {"256 characters", std::string(256, 'a'), nullptr},
    {"256 characters of two bytes",
     "#" +
         [] {
           std::string s;
           for (int i = 0; i < 255; ++i) s += "\xC3\xA9";
           return s;
         }(),
     ""},
};

struct Refused {
  const char* id;
  std::string text;
  const char* message;
};

const std::vector<Refused> kRefused = {
    {"two names in a line", "mm\nrelu gelu\n",
     "my.txt:2: 'relu gelu' is no op name; one name a line is accepted: letters, digits, _ and one "
     "dot"},
    {"commas", "mm,relu\n",
     "my.txt:1: 'mm,relu' is no op name; one name a line is accepted: letters, digits, _ and one "
     "dot"},
    {"a C++ name", "\n\naten::mm\n",
     "my.txt:3: 'aten::mm' is no op name; one name a line is accepted: letters, digits, _ and one "
     "dot (write 'mm')"},
    {"a path", "torch.nn.functional.relu\n",
     "my.txt:1: 'torch.nn.functional.relu' is no op name; one name a line is accepted: letters, "
     "digits, _ and one dot (write 'relu')"},
    {"an empty overload", "pow.\n",
     "my.txt:1: 'pow.' is no op name; one name a line is accepted: letters, digits, _ and one dot"},
    {"bytes that are no text", std::string("mm\n\0\xFF\n", 6),
     "my.txt:2: '\\x00\\xff' is no op name; one name a line is accepted: letters, digits, _ and "
     "one dot"},
    {"D21 an edit among names", "mm\n+relu\n",
     "my.txt:2: 'relu' begins with + or -, the names above do not; either every name begins with + "
     "or -, and the list edits the default one, or none does"},
    {"D21 a name among edits", "+mm\nrelu\n",
     "my.txt:2: 'relu' lacks the + or - of the names above; either every name begins with + or -, "
     "and the list edits the default one, or none does"},
    {"added and taken out", "+mm\n+relu\n-mm\n",
     "my.txt:3: 'mm' is taken out here and added in line 1"},
    {"a sign alone", "+\n",
     "my.txt:1: '' is no op name; one name a line is accepted: letters, digits, _ and one dot"},
    {"257 characters", "mm\n#" + std::string(256, ' ') + "\n",
     "my.txt:2: the line has over 256 characters; one op name a line is accepted"},
    {"over 1 MiB", std::string((1u << 20) + 1, '\n'),
     "my.txt:1: the file is over 1 MiB; a list holds one op name a line"},
};

}  // namespace

TEST_CASE("parse_op_list: what is accepted (D20, D21)") {
  for (const Accepted& c : kAccepted) {
    SUBCASE(c.id) {
      if (c.names == nullptr) {
        CHECK(parse_op_list(c.text, "my.txt").ops.size() == 1);
      } else {
        CHECK(names_of(parse_op_list(c.text, "my.txt")) == c.names);
      }
    }
  }
  CHECK(parse_op_list("+mm", "my.txt").edits);
  CHECK_FALSE(parse_op_list("mm", "my.txt").edits);
  CHECK(parse_op_list("mm", "my.txt").path == "my.txt");
  CHECK(parse_op_list(std::string(1u << 20, '\n'), "my.txt").ops.empty());
}

TEST_CASE("parse_op_list: what is refused, and where (D20, D21)") {
  for (const Refused& c : kRefused) {
    SUBCASE(c.id) { CHECK(error_of(c.text) == c.message); }
  }
}

TEST_CASE("is_op_name and base_name (D17)") {
  CHECK(is_op_name("pow.Tensor_Scalar"));
  CHECK_FALSE(is_op_name("a.b.c"));
  CHECK_FALSE(is_op_name(".a"));
  CHECK_FALSE(is_op_name(""));
  CHECK_FALSE(is_op_name("caf\xC3\xA9"));
  CHECK(base_name("pow.Tensor_Scalar") == "pow");
  CHECK(base_name("pow") == "pow");
}
