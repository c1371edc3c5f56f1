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
    out += written(op.entry) + "@" + std::to_string(op.entry.line);
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
    {"an entry for one low dtype", "layer_norm@float16\npow.Tensor_Scalar@bfloat16 # why\n",
     "layer_norm@float16@1 pow.Tensor_Scalar@bfloat16@2"},
    {"D21 edits for one low dtype", "+mm@float16\n-mm@bfloat16\n+mm@float16\n",
     "+mm@float16@1 -mm@bfloat16@2 +mm@float16@3"},
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
     "my.txt:2: 'relu gelu' is not an op name. A line holds one name, such as mul, mul.Tensor, "
     "mul@float16 or mul in encoder.*"},
    {"commas", "mm,relu\n",
     "my.txt:1: 'mm,relu' is not an op name. A line holds one name, such as mul, mul.Tensor, "
     "mul@float16 or mul in encoder.*"},
    {"a C++ name", "\n\naten::mm\n",
     "my.txt:3: 'aten::mm' is not an op name. A line holds one name, such as mul, mul.Tensor, "
     "mul@float16 or mul in encoder.* (write 'mm')"},
    {"a path", "torch.nn.functional.relu\n",
     "my.txt:1: 'torch.nn.functional.relu' is not an op name. A line holds one name, such as mul, "
     "mul.Tensor, mul@float16 or mul in encoder.* (write 'relu')"},
    {"an empty overload", "pow.\n",
     "my.txt:1: 'pow.' is not an op name. A line holds one name, such as mul, mul.Tensor, "
     "mul@float16 or mul in encoder.*"},
    {"bytes that are no text", std::string("mm\n\0\xFF\n", 6),
     "my.txt:2: '\\x00\\xff' is not an op name. A line holds one name, such as mul, mul.Tensor, "
     "mul@float16 or mul in encoder.*"},
    {"D21 an edit among names", "mm\n+relu\n",
     "my.txt:2: 'relu' begins with + or -, but the names above do not. Either every name begins "
     "with + "
     "or -, and the file edits the default list, or none does"},
    {"D21 a name among edits", "+mm\nrelu\n",
     "my.txt:2: 'relu' does not begin with + or -, but the names above do. Either every name "
     "begins with + or -, and the file edits the default list, or none does"},
    {"added and taken out", "+mm\n+relu\n-mm\n",
     "my.txt:3: 'mm' is taken out here and added in line 1"},
    {"another dtype", "mm\nmm@float64\n",
     "my.txt:2: 'mm@float64' is not an entry of a list. After @, float16 or bfloat16 is accepted"},
    {"no dtype", "mm@\n",
     "my.txt:1: 'mm@' is not an entry of a list. After @, float16 or bfloat16 is accepted"},
    {"two dtypes", "+mm@float16@bfloat16\n",
     "my.txt:1: 'mm@float16@bfloat16' is not an entry of a list. After @, float16 or bfloat16 is "
     "accepted"},
    {"a dtype alone", "@float16\n",
     "my.txt:1: '@float16' is not an op name. A line holds one name, such as mul, mul.Tensor, "
     "mul@float16 or mul in encoder.*"},
    {"a C++ name for one low dtype", "aten::mm@float16\n",
     "my.txt:1: 'aten::mm@float16' is not an op name. A line holds one name, such as mul, "
     "mul.Tensor, mul@float16 or mul in encoder.* (write 'mm@float16')"},
    {"added, and taken out for one low dtype", "+mm\n-mm@float16\n",
     "my.txt:2: 'mm@float16' is taken out here and added in line 1"},
    {"taken out for one low dtype, and added", "-mm@bfloat16\n+mm\n",
     "my.txt:2: 'mm' is added here and taken out in line 1"},
    {"modules that are none", "mm in a..b\n",
     "my.txt:1: 'a..b' is not a pattern of modules. Accepted are names of modules with dots "
     "between them, * for any characters but a dot, ** for any"},
    {"no modules", "mm in\n",
     "my.txt:1: 'mm in' is not an op name. A line holds one name, such as mul, mul.Tensor, "
     "mul@float16 or mul in encoder.*"},
    {"added, and taken out of the same modules", "+mm in a\n+mm in b\n-mm in a\n",
     "my.txt:3: 'mm in a' is taken out here and added in line 1"},
    {"an edit of the command line", "+softmax:lower\n",
     "my.txt:1: 'softmax:lower' is not an op name. A line holds one name, such as mul, mul.Tensor, "
     "mul@float16 or mul in encoder.* (leave out ':lower': the file is one list)"},
    {"a sign alone", "+\n",
     "my.txt:1: '' is not an op name. A line holds one name, such as mul, mul.Tensor, mul@float16 "
     "or mul in encoder.*"},
    {"257 characters", "mm\n#" + std::string(256, ' ') + "\n",
     "my.txt:2: the line has more than 256 characters. A line holds one op name"},
    {"larger than 1 MiB", std::string((1u << 20) + 1, '\n'),
     "my.txt:1: the file is larger than 1 MiB. A list has one op name in each line"},
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

TEST_CASE("parse_op_list: an entry has its list, its place and its comment") {
  const OpList list = parse_op_list("mm # why\r\nrelu@fp16 in a.* #\n", "my.txt", Action::Promote);
  CHECK(list.ops[0].entry.list == Action::Promote);
  CHECK(list.ops[0].entry.comment == "why");
  CHECK(place(list.ops[0].entry) == "my.txt:1");
  CHECK(written(list.ops[1].entry) == "relu@float16 in a.*");
  CHECK(list.ops[1].entry.comment.empty());
  CHECK_FALSE(parse_op_list("mm", "my.txt").ops[0].entry.list);
}

TEST_CASE("parse_op_list: all mistakes, and what is right between them") {
  std::vector<ListError> mistakes;
  const OpList list = parse_op_list("mm\n+relu\na b\nbmm@x\nbmm\n", "my.txt", {}, &mistakes);
  CHECK(names_of(list) == "mm@1 bmm@5");
  REQUIRE(mistakes.size() == 3);
  CHECK(mistakes[1].line == 3);
  CHECK(mistakes[2].reason ==
        "'bmm@x' is not an entry of a list. After @, float16 or bfloat16 is accepted");
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

TEST_CASE("read_entry and is_entry") {
  CHECK(read_entry("mm")->op == "mm");
  CHECK(read_entry("mm")->low == DType::Other);
  CHECK(read_entry("pow.Tensor_Scalar@float16")->op == "pow.Tensor_Scalar");
  CHECK(read_entry("pow.Tensor_Scalar@float16")->low == DType::Float16);
  CHECK(read_entry("mm@bfloat16")->low == DType::BFloat16);
  for (const char* bad : {"mm@", "mm@other", "mm@float32", "mm@Float16", "mm@float16 ", "mm@@"})
    CHECK_FALSE(read_entry(bad));
  CHECK(is_entry("mm@float16"));
  CHECK_FALSE(is_entry("mm@float32"));
  CHECK_FALSE(is_entry("@float16"));
  CHECK_FALSE(is_entry("m m@float16"));
}

TEST_CASE("read_entry: modules that a name is limited to") {
  const auto entry = read_entry("mm@float16 \t in  layers.*.a-b.0 ");
  CHECK(entry->op == "mm");
  CHECK(entry->low == DType::Float16);
  CHECK(written(*entry) == "mm@float16 in layers.*.a-b.0");
  CHECK(read_entry("mm inside a")->modules.empty());
  CHECK(is_entry("mm in **"));
  for (const char* bad : {"mm in a.", "mm in a b", "mm in a,b", "mm in a:b", "mm in a=b"})
    CHECK_FALSE(is_entry(bad));
}
