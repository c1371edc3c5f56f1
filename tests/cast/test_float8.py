"""Weights that are stored in float8: cast where an op computes with them, and left alone where nothing else is given (D49)."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from drawn_models import converted
from torch import nn

from habana_mp import hmp

pytestmark = [
    pytest.mark.usefixtures("empty_cache"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of Inductor
]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
E4M3 = FORMATS[0]


FRONT_ENDS = {
    "convert": converted,
    "convert-torch-cpu": lambda: converted(policy="torch-cpu"),
    "autocast": lambda: hmp.autocast("cpu"),
    "autocast-hmp": lambda: hmp.autocast("cpu", policy="hmp"),
    "autocast-torch-cpu": lambda: hmp.autocast("cpu", policy="torch-cpu"),
}
both = pytest.mark.parametrize("front_end", FRONT_ENDS.values(), ids=FRONT_ENDS)
PRODUCTS = {
    "linear": lambda x, w: F.linear(x, w),
    "linear-and-bias": lambda x, w: F.linear(x, w, w[0]),
    "mm": lambda x, w: torch.mm(x, w),
    "operator": lambda x, w: x @ w,
    "method": lambda x, w: x.mm(mat2=w),
    "addmm": lambda x, w: torch.addmm(x[0], x, w),
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "conv1d": lambda x, w: F.conv1d(x[None], w[..., None]),
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
}


def x(dtype=F32, *sizes):
    return torch.randn(*(sizes or (16, 16))).to(dtype)


@both
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_has_the_numbers_of_one_in_bfloat16(front_end, product):
    given, weight = x(), x(E4M3)
    expected = product(given.to(BF16), weight.to(BF16))
    with front_end():
        found = product(given, weight)
    assert found.dtype == BF16
    assert torch.equal(found, expected)


@both
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("first", [F32, BF16, *FORMATS[:1]], ids=str)
def test_every_format(front_end, dtype, first):
    given, weight = x(first), x(dtype)
    with front_end():
        found = torch.mm(given, weight)
    assert torch.equal(found, torch.mm(given.to(BF16), weight.to(BF16)))


@pytest.mark.parametrize(
    "front_end",
    [lambda: converted(low_precision_type=F16), lambda: hmp.autocast("cpu", dtype=F16)],
    ids=["convert", "autocast"],
)
def test_float16(front_end):
    given, weight = x(), x(E4M3)
    with front_end():
        found = F.linear(given, weight)
    assert torch.equal(found, F.linear(given.half(), weight.half()))


def test_as_torch_autocast_has_it():
    """Each op of the lists of torch.autocast that takes two tensors."""
    calls = {**PRODUCTS, "mse_loss": F.mse_loss, "cdist": torch.cdist, "gelu-of-mm": lambda a, b: F.gelu(a @ b)}
    given, weight = x(), x(E4M3)
    for name, call in calls.items():
        with torch.autocast("cpu"):
            expected = call(given, weight)
        with hmp.autocast("cpu", policy="torch-cpu"):
            found = call(given, weight)
        assert (name, found.dtype) == (name, expected.dtype)
        assert torch.equal(found, expected), name


RULES = {
    "lower": ({"lower": ["mul"]}, lambda: x() * x(E4M3), BF16),
    "fp32": ({"fp32": ["mul"]}, lambda: x(BF16) * x(E4M3), F32),
    "promote": ({"promote": ["mul"]}, lambda: x(E4M3) * x(BF16), BF16),
    "promote-to-float32": ({"promote": ["cat"]}, lambda: torch.cat([x(E4M3), x(BF16), x()]), F32),
    "promote-of-float8": ({"promote": ["cat"]}, lambda: torch.cat([x(E4M3), x(E4M3)]), E4M3),
    "first-input": ({}, lambda: x(BF16) * x(E4M3), BF16),
    "first-input-is-float8": ({}, lambda: x(E4M3) * x(), F32),
    "in-place": ({}, lambda: x(BF16).mul_(x(E4M3)), BF16),
    "into-float8": ({}, lambda: x(E4M3).copy_(x()), E4M3),
    "a-norm": ({"lower": ["layer_norm"]}, lambda: F.layer_norm(x(), (16,), x(E4M3)[0], x(E4M3)[0]), BF16),
    "a-view": ({"lower": ["t"]}, lambda: x(E4M3).t(), E4M3),
    "a-copy": ({"fp32": ["clone"]}, lambda: x(E4M3).clone(), E4M3),
    "an-embedding": ({"fp32": ["embedding"]}, lambda: F.embedding(torch.arange(3), x(E4M3)), E4M3),
    "out": ({"lower": ["mm"]}, lambda: torch.where(x() > 0, x(E4M3), x(E4M3), out=x(E4M3)), E4M3),
}


@pytest.mark.parametrize(("lists", "call", "dtype"), RULES.values(), ids=RULES)
def test_a_rule(lists, call, dtype):
    with converted(policy=hmp.Policy.from_ops(**lists, rest="first_input")):
        assert call().dtype == dtype


def assigned(cache):
    cache[:, 1] = x()[:, 0]
    return cache


def copied(cache):
    return cache.copy_(x())


MOVES = {
    "index": lambda k: k[:, 1],
    "mask": lambda k: k[torch.arange(16) % 2 == 0],
    "assign": assigned,
    "copy_": copied,
    "clone": lambda k: k.clone(),
    "contiguous": lambda k: k.t().contiguous(),
    "reshape": lambda k: k.reshape(4, 64),
    "split": lambda k: k.split(4)[1],
    "cat": lambda k: torch.cat([k, k]),
    "stack": lambda k: torch.stack([k, k]),
    "where": lambda k: torch.where(torch.ones(16, 1) > 0, k, k.t()),
    "index_select": lambda k: k.index_select(0, torch.arange(3)),
    "repeat": lambda k: k.repeat(2, 1),
    "expand": lambda k: k[None].expand(2, 16, 16),
    "empty_like": torch.empty_like,
    "detach": lambda k: k.detach(),
}


@pytest.mark.parametrize("policy", ["hmp", "hmp-o2", "balanced", "torch-cpu"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_what_moves_stored_numbers_leaves_them(move, policy):
    """A cache of keys and values in float8, for one."""
    stored = x(E4M3)
    torch.manual_seed(1)
    expected = move(stored.clone())
    for inside in (lambda: converted(policy=policy), lambda: hmp.autocast("cpu", policy=policy)):
        torch.manual_seed(1)
        with inside():
            found = move(stored.clone())
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if move is not torch.empty_like:
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


class LoRA(nn.Module):
    """Two frozen weights in float8, each with a low-rank update that is trained."""

    def __init__(self):
        super().__init__()
        self.base = nn.ParameterList(nn.Parameter(x(E4M3, 128, 128), requires_grad=False) for _ in range(2))
        self.down = nn.ParameterList(nn.Parameter(x(F32, 8, 128)) for _ in range(2))
        self.up = nn.ParameterList(nn.Parameter(x(F32, 128, 8)) for _ in range(2))
        self.norm = nn.LayerNorm(128)

    def forward(self, given):
        for base, down, up in zip(self.base, self.down, self.up, strict=True):
            given = self.norm(F.linear(given, base) + F.linear(F.linear(given, down), up))
        return given


def step(model, given):
    loss = model(given).float().square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)]


@pytest.mark.parametrize("front_end", [FRONT_ENDS["convert-torch-cpu"], FRONT_ENDS["autocast-torch-cpu"]])
def test_a_step_of_lora_has_the_numbers_of_torch_autocast(front_end):
    model, given = LoRA(), x(F32, 4, 128)
    twin = copy.deepcopy(model)
    with torch.autocast("cpu"):
        expected = step(twin, given)
    with front_end():
        found = step(model, given)
    assert len(found) == 7
    assert all(map(torch.equal, found, expected))


@both
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_compiled(front_end, mode):
    model, given = LoRA(), x(F32, 4, 128)
    with mode():
        with front_end():
            expected = model(given)
        torch._dynamo.reset()
        with front_end():
            found = torch.compile(model, backend="aot_eager", fullgraph=True)(given)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@both
def test_its_gradient_has_its_dtype(front_end):
    """As that of torch.autocast."""
    for dtype in FORMATS:
        weight, given = nn.Parameter(x(dtype)), x()
        with front_end():
            F.linear(given, weight).sum().backward()
        assert weight.grad.dtype == dtype
        assert torch.equal(weight.grad.float(), given.to(BF16).sum(0).expand(16, 16).to(dtype).float())


@both
def test_the_cache_keeps_no_copy(front_end):
    """Memory is why a weight is in float8. What is written to it counts at once."""
    weight, given = nn.Parameter(x(E4M3, 128, 128), requires_grad=False), x(F32, 4, 128)
    with torch.no_grad(), front_end():
        F.linear(given, weight)
        weight.copy_(x(F32, 128, 128))
        assert torch.equal(F.linear(given, weight), F.linear(given.to(BF16), weight.to(BF16)))
        assert hmp.cache.info().entries == 0


def test_a_product_in_float8_is_left_alone():
    """The transpose of the weight, which preset hmp lists, stays a float8 view."""
    given, weight, one = x(E4M3), x(E4M3), torch.tensor(1.0)
    expected = torch._scaled_mm(given, weight.t(), one, one, out_dtype=BF16)
    with converted():
        assert weight.t().data_ptr() == weight.data_ptr()
        assert torch.equal(torch._scaled_mm(given, weight.t(), one, one, out_dtype=BF16), expected)


def test_the_report_counts_its_casts(tmp_path):
    weight, given = x(E4M3), x(BF16)
    with hmp.report(values=True) as report, hmp.autocast("cpu"):
        for _ in range(3):
            F.linear(given, weight)
    (row,) = report.to_dict()["rows"]
    (cast,) = row["casts"]
    assert (row["dtypes"], row["runs_in"]) == (["float8", "bfloat16"], ["bfloat16"])
    assert (cast["from"], cast["to"], cast["count"], cast["bytes"]) == ("float8", "bfloat16", 3, 3 * weight.numel() * 2)
    assert row["values"]["ran"]["squares"] > 0
    assert "fp8→bf16" in str(report)
    assert report.to_dict()["recast"] == []
    report.to_json(tmp_path / "report.json")
    assert hmp.CastReport.load(tmp_path / "report.json").to_dict() == report.to_dict()
    assert "float8" in report.to_html()


def test_the_log_has_its_line(capfd):
    hmp.convert(isVerbose=True)
    torch.mm(x(BF16), x(E4M3))
    hmp.revert()
    assert capfd.readouterr().out.splitlines()[-1].endswith("to_bf16")


@pytest.mark.parametrize("front_end", [converted, FRONT_ENDS["autocast"]], ids=["convert", "autocast"])
def test_off_it_is_torchs(front_end):
    with front_end(), hmp.disable_casts(), pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(x(), x(E4M3))


def test_torchs_error_stays_where_no_list_names_the_op():
    with hmp.autocast("cpu", policy="torch-cpu"), pytest.raises(RuntimeError, match="Promotion for Float8"):
        torch.add(x(BF16), x(E4M3))
