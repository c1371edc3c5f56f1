"""explain: the rule of an op here and now, who said so, the homes it covers and what happens to its arguments."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from habana_mp import hmp

ROOT = Path(hmp.explain.__code__.co_filename).parent


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("layer_norm", "layer_norm"),
        ("torch.nn.functional.layer_norm", "layer_norm"),
        ("F.layer_norm", "layer_norm"),
        ("Tensor.__matmul__", "__matmul__"),
        ("torch.linalg.solve", "linalg_solve"),
        ("torch.fft.fft", "fft_fft"),
        ("pow.Tensor_Scalar", "pow.Tensor_Scalar"),
    ],
)
def test_an_op_is_known_by_any_of_its_names(name: str, plain: str) -> None:
    assert hmp.explain(name).op == plain


@pytest.mark.parametrize(
    ("name", "near"), [("lienar", "linear"), ("torch.nn.functional.rellu", "relu"), ("", ""), ("os.path.join", "")]
)
def test_an_unknown_name_is_reported_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"is not an op of torch {torch.__version__.split('+')[0]}.*{near}"):
        hmp.explain(name)


def test_a_wrong_type_is_reported() -> None:
    with pytest.raises(
        TypeError, match=r"explain takes the name of an op, such as 'layer_norm', or a class of torch\.nn, not 3"
    ):
        hmp.explain(3)  # type: ignore[arg-type]


def test_states() -> None:
    assert (hmp.explain("mm").in_force, hmp.explain("mm").state) == (False, "not in force: nothing is converted")
    hmp.convert()
    assert (hmp.explain("mm").in_force, hmp.explain("mm").state) == (True, "in force")
    with hmp.disable_casts():
        assert (hmp.explain("mm").in_force, hmp.explain("mm").state) == (False, "switched off here by disable_casts")
    other = hmp.explain("mm", policy="torch-cpu")
    assert (other.policy.name, other.in_force, other.state) == ("torch-cpu", False, "not in force")
    assert hmp.explain("mm", policy="hmp").in_force


def test_who_said_so(tmp_path: Path) -> None:
    file = tmp_path / "lower.txt"
    file.write_text("# mine\nlinear\n\n  gelu  # for speed\n")
    hmp.convert(bf16_file_path=file)
    rule = hmp.explain("gelu").rule
    assert (rule.action, rule.listed_as, rule.file, rule.line) == ("lower", "gelu", str(file), 4)
    assert rule.comment == "for speed"
    assert "\n  comment    for speed\n  policy " in str(hmp.explain("gelu"))
    assert hmp.explain("linear").rule.comment == ""
    assert "comment" not in str(hmp.explain("linear"))
    rule = hmp.explain("mm").rule
    assert (rule.action, rule.listed_as, rule.file, rule.line) == ("rest", None, None, None)


def test_a_comment_is_of_the_line_as_it_was_read(tmp_path: Path) -> None:
    file = tmp_path / "lower.txt"
    file.write_text("gelu  # for speed\n")
    hmp.convert(bf16_file_path=file)
    file.write_text("relu  # of another op\n")
    assert hmp.explain("gelu").rule.comment == "for speed"
    file.unlink()
    assert hmp.explain("gelu").rule.comment == "for speed"


def test_the_evidence_of_balanced_is_shown() -> None:
    assert hmp.explain("cross_entropy", policy="balanced").rule.comment.startswith("bf16: error ")


@pytest.mark.parametrize(
    ("op", "homes"),
    [
        ("mm", {"torch.Tensor.mm": "bfloat16", "torch.mm": "bfloat16", "torch._VF.mm": "bfloat16"}),
        (
            "iadd",
            {"torch.Tensor.__iadd__": "in place: the other tensors take the dtype of the one written to"},
        ),
        (
            "cross_entropy",
            {"torch.nn.functional.cross_entropy": "float32"},
        ),
        (  # D17: known only in C++, so the Python calls that reach it
            "cross_entropy_loss",
            {"torch.nn.functional.cross_entropy": "float32", "torch._C._nn.cross_entropy_loss": "float32"},
        ),
        ("exp", dict.fromkeys(["torch.Tensor.exp", "torch.Tensor.exp_", "torch.exp", "torch.exp_"], "left alone")),
        (
            "linalg_solve",
            {"torch.linalg.solve": "first input's dtype (rest)"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_homes(op: str, homes: dict[str, str]) -> None:
    assert homes.items() <= hmp.explain(op, policy="hmp").homes.items()


@pytest.mark.parametrize("op", ["bmm", "baddbmm", "embedding_bag"])
def test_ops_in_8_bits(op: str) -> None:
    for title, what in {"weight_int8": "bfloat16, weights in 8 bits", "int8": "int8"}.items():
        if (title, op) == ("int8", "embedding_bag"):  # it has no sums of activations
            continue
        found = hmp.explain(op, policy=hmp.Policy.from_ops(**{title: [op]}))
        assert found.rule.action == title
        assert found.homes[f"torch.{op}"] == what
        assert "a weight that requires no gradient" in str(found)
    if op == "baddbmm":
        assert found.homes["torch.Tensor.baddbmm_"].startswith("in place: ")


def test_homes_say_what_calls_do() -> None:
    """Every home that explain tells a dtype for gives that dtype when it is called."""
    hmp.convert()
    x = torch.randn(4, 4)
    for label, what in hmp.explain("mm").homes.items():
        if label.startswith("torch.Tensor."):
            result = getattr(x, label.rpartition(".")[2])(x)
        else:
            result = torch.mm(x, x) if label == "torch.mm" else torch._VF.mm(x, x)
        assert str(result.dtype) == f"torch.{what}"


@pytest.mark.parametrize(
    ("op", "policy", "part"),
    [
        ("mm", "hmp", "go to bfloat16"),
        ("layer_norm", "hmp", "the input goes to bfloat16; weight, bias and running statistics stay"),
        ("batch_norm", "hmp-o1", "the input, weight and bias go to float32; running statistics stay"),
        ("batch_norm", "hmp-resnet50", "nothing but the first argument counts"),
        ("softmax", "hmp", "go to float32"),
        ("add", "hmp", "go to the widest dtype among them"),
        ("mse_loss", "hmp", "take the dtype of the first"),
        ("relu", "hmp-o2", "go to float32, if the op computes on them"),
        ("relu", "torch-cpu", "left alone: no list names it"),
        ("heaviside", "torch-cpu", "go to the widest dtype among them: no list names it, and it refuses"),
        ("binary_cross_entropy", "torch-cuda", "raises RuntimeError"),
        ("mm", "torch-cuda", "go to float16"),
    ],
)
def test_arguments(op: str, policy: str, part: str) -> None:
    assert part in hmp.explain(op, policy=policy).arguments[0]


def test_inside_regions() -> None:
    """``rest`` holds there too (D40); in place only what refuses mixed dtypes is cast (F85)."""
    with hmp.autocast("cpu", policy="hmp"):
        explained = hmp.explain("mse_loss")
        assert "take the dtype of the first" in explained.arguments[0]
        assert hmp.explain("add").arguments[1].endswith("and calls in place")
        assert hmp.explain("index_add").arguments[1].endswith("in place the target keeps its dtype")
        assert explained.state == "in force here: autocast for cpu"
        assert "aten::mse_loss" in explained.homes
        hmp.convert(policy="hmp-o1")
        assert hmp.explain("mm").state == "in force here: autocast for cpu; hmp-o1, of convert, acts before it"
        hmp.revert()
    with torch.autocast("cpu"):
        assert "torch.autocast that is on here has lists of its own" in hmp.explain("mm").state


@pytest.mark.parametrize("name", ["aten::mm", "aten.mm.default", "torch.ops.aten.mm", "torch.ops.aten.mm.default"])
def test_names_that_it_shows_are_names_that_it_takes(name: str) -> None:
    assert hmp.explain(name).op == "mm"


@pytest.mark.parametrize("given", [{"module": "head"}, {"policy": 3}], ids=["module-is-a-string", "policy-is-a-number"])
def test_wrong_types(given) -> None:
    with pytest.raises(TypeError):
        hmp.explain("mm", **given)


def test_text() -> None:
    text = str(hmp.explain("dot", policy="hmp"))
    assert text.splitlines() == [
        "dot",
        f"  rule       lower (bfloat16), listed as dot in {hmp.explain('dot').rule.file}:{hmp.explain('dot').rule.line}",
        "  policy     hmp, not in force",
        "  compiled   exact: it rounds where the lists say",
        "  arguments  float32, bfloat16, float16 and float8 tensors, also in lists and given by keyword, go to bfloat16",
        "             left alone: calls with a float64 or complex tensor, with dtype= or with out=; in place the target keeps its dtype",
        "  homes      torch.Tensor.dot  ->  bfloat16",
        "             torch.dot  ->  bfloat16",
        "             torch._VF.dot  ->  bfloat16",
    ]


# --- Several ops

# what is asked for -> ops that must be among those explained, in this order
SEVERAL = {
    "two ops": (("softmax", "mm"), ["softmax", "mm"]),
    "the same twice": (("mm", "torch.mm", "bmm"), ["mm", "bmm"]),
    "a part": (("_pool2d",), ["avg_pool2d", "max_pool2d"]),
    "a part in capitals": (("Attention",), ["scaled_dot_product_attention"]),
    "a module by name": (("nn.MultiheadAttention",), ["bmm", "softmax", "dropout", "linear"]),
    "with torch": (("torch.nn.Linear", "softmax"), ["linear", "softmax"]),
    "its class": ((torch.nn.Conv2d,), ["conv2d"]),
    "modules in modules": ((torch.nn.TransformerEncoderLayer,), ["linear", "layer_norm", "softmax"]),
    "a recurrent one": (("nn.LSTM",), ["lstm"]),
    "a loss": (("CrossEntropyLoss",), ["cross_entropy"]),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_several(case: str) -> None:
    asked, expected = SEVERAL[case]
    explained = hmp.explain(*asked)
    found = [each.op for each in explained] if isinstance(explained, tuple) else [explained.op]
    assert [op for op in found if op in expected] == expected
    lines = str(explained).splitlines()
    if isinstance(explained, tuple):
        assert lines[0] == "hmp, not in force: nothing is converted"
        assert [line.split()[0] for line in lines[1:]] == found
        assert explained._repr_html_().count("</table>") == len(found)


def test_several_have_a_line_for_each_rule_inside_modules() -> None:
    policy = hmp.Policy.load("balanced").with_edits("+matmul in **.rotary:fp32", "+bmm in **.router:fp32")
    _, *lines = str(hmp.explain("matmul", "softmax", policy=policy)).splitlines()
    assert [line.split()[0] for line in lines] == ["matmul", "in", "softmax"]
    assert "in the modules **.rotary it is in the fp32 list" in lines[1]


def test_an_op_in_modules_is_refused() -> None:
    with pytest.raises(
        ValueError, match="takes the name of an op, here 'mul': its explanation has the rules inside modules"
    ):
        hmp.explain("mul in **.rotary")


def test_a_module_has_the_same_ops_where_something_is_converted() -> None:
    def ops() -> list[str]:
        return [each.op for each in hmp.explain("nn.MultiheadAttention", "mm", policy="hmp")]

    before = ops()
    hmp.convert(policy="hmp")
    assert ops() == before


class OwnModule(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(helped(x), -1)


def helped(x: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, x)


def test_a_module_of_ones_own() -> None:
    assert {each.op for each in hmp.explain(OwnModule)} == {"softmax", "bmm"}


def test_what_a_listed_function_calls_has_no_rule_d19() -> None:
    policy = hmp.Policy.from_ops(fp32=["multi_head_attention_forward"])
    assert [each.op for each in hmp.explain("nn.MultiheadAttention", "mm", policy=policy)][-1] == "mm"
    assert "bmm" not in {each.op for each in hmp.explain("nn.MultiheadAttention", "mm", policy=policy)}


@pytest.mark.parametrize("asked", ["", "li", "sofmaxx", "nn.Lienar", "nn.Identity", "nn.functional"])
def test_what_stands_for_no_op(asked: str) -> None:
    with pytest.raises(ValueError, match=r"is not an op of torch|calls no op that computes"):
        hmp.explain(asked)


# --- What shows itself

SHOWN = {
    "autocast": (lambda: hmp.autocast("cpu", "bf16", policy="hmp"), "<hmp.autocast 'cpu', bf16, policy=hmp>"),
    "off": (lambda: hmp.autocast("cuda", enabled=False), "<hmp.autocast 'cuda', enabled=False>"),
    "of a policy": (
        lambda: hmp.autocast("cpu", policy=hmp.Policy.from_ops(name="mine")),
        "<hmp.autocast 'cpu', policy=mine>",
    ),
    "current": (hmp.autocast.current, "<hmp.autocast 'current'>"),
    "disable_casts": (hmp.disable_casts, "<hmp.disable_casts>"),
    "set_policies": (
        lambda: hmp.set_policies(torch.nn.Sequential(torch.nn.Linear(1, 1)), {"0": "fp32"}),
        "<hmp.set_policies {'0': 'fp32'}>",
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_a_handle_says_what_it_is(case: str) -> None:
    make, shown = SHOWN[case]
    assert repr(make()) == shown


def test_a_handle_that_was_removed_says_so() -> None:
    handle = hmp.set_policies(torch.nn.Sequential(torch.nn.Linear(1, 1)), {"0": "hmp"})
    handle.remove()
    assert repr(handle) == "<hmp.set_policies {'0': 'hmp'}, removed>"


def test_a_cpu_without_bfloat16_is_noted_once_in_a_process() -> None:
    program = """
from habana_mp import hmp
print([any("no bfloat16 instructions" in note for note in hmp.explain(op).notes) for op in ("mm", "bmm")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    able = {"avx512_bf16", "amx_bf16", "bf16"} & {*Path("/proc/cpuinfo").read_text().split()}
    assert (
        done.stdout == f"[{not able}, False]\n"
    )  # not what oneDNN says: it computes bfloat16 with AVX-512 alone, five times as slowly
