"""hmp.compare: the rules and the lists that differ between two policies, as the first lines and the table have them."""

from __future__ import annotations

import pytest
import torch
from int8_numbers import Product
from torch import nn

from habana_mp import hmp

BALANCED = hmp.Policy.load("balanced")


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).requires_grad_(False)


def compared(model: nn.Module, a: hmp.Policy | None, b: hmp.Policy) -> hmp.Comparison:
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    return hmp.compare(lambda: model(x), a, b)


# The edits of run b; the rules that differ; what ran in other dtypes or lists.
EDITS = {
    "8 bits in a module": (["+linear in 2:int8"], "linear in Sequential: 2 lower / int8", {"2": "bfloat16 / int8"}),
    "weights in a module": (["+linear in 2:weight_int8"], "linear in Sequential: 2 lower / weight_int8", {"2": "bfloat16 / weight_int8"}),
    "float32 in a module": (["+linear in 2:fp32"], "linear in Sequential: 2 lower / fp32", {"2": "bfloat16 / float32"}),
    "float32 in some": (
        ["+linear in *:fp32"],
        "linear in Sequential: * lower / fp32",
        {"0": "bfloat16 / float32", "1": "bfloat16 / float32", "2": "bfloat16 / float32"},
    ),
    "from no list in a module": (["+gelu in 1:fp32"], "gelu in Sequential: 1 unlisted / fp32", {"1": "bfloat16 / float32"}),
    "everywhere": (["+linear:int8"], "linear lower / int8", {"0": "bfloat16 / int8", "2": "bfloat16 / int8"}),
    "everywhere but in a module": (
        ["+linear:int8", "+linear in 2:weight_int8"],
        "linear lower / int8, linear in Sequential: 2 lower / weight_int8",
        {"0": "bfloat16 / int8", "2": "bfloat16 / weight_int8"},
    ),
    "nothing that this step has": (["+conv2d in 2:int8", "+softmax:fp32"], "no op with other numbers has another rule", {}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*names no module")
@pytest.mark.parametrize(("edits", "rules", "ran"), EDITS.values(), ids=EDITS)
def test_the_rules_that_differ(edits, rules, ran) -> None:
    found = compared(layers(), BALANCED, BALANCED.with_edits(*edits))
    assert str(found).splitlines()[2] == f"a / b: {rules}"
    rows = [row for row in found.rows if row.kind == "precision"]
    assert {row.module.removeprefix("Sequential: "): " / ".join(row.runs_in) for row in rows} == ran
    table = str(found).partition("op  ")[2]
    assert all(text in table for text in ran.values())


@pytest.mark.parametrize("title", ["int8", "weight_int8"])
@pytest.mark.parametrize(
    ("model", "op"), [(nn.Linear(64, 8, bias=False), "linear"), (Product(), "matmul")], ids=["linear", "matmul"]
)
class TestOneOp:
    def test_a_trained_weight_is_not_in_8_bits(self, model, op, title) -> None:
        found = compared(model.requires_grad_(True), None, BALANCED.with_edits(f"+{op}:{title}"))
        assert found.first.runs_in == ("float32", "bfloat16")

    def test_a_frozen_weight_is(self, model, op, title) -> None:
        eight = BALANCED.with_edits(f"+{op}:{title}")
        model.requires_grad_(False)
        assert compared(model, None, eight).first.runs_in == ("float32", title)
        assert compared(model, eight, BALANCED).first.runs_in == (title, "bfloat16")

    def test_recorded_runs(self, model, op, title, tmp_path) -> None:
        x = torch.randn(2, 64)
        policies = BALANCED, BALANCED.with_edits(f"+{op}:{title}")
        for name, policy in zip("ab", policies, strict=True):
            with torch.no_grad(), hmp.autocast("cpu", policy=policy), hmp.record(tmp_path / f"{name}.rec"):
                model(x)
        found = hmp.compare(tmp_path / "a.rec", tmp_path / "b.rec")
        assert found.first.runs_in == ("bfloat16", title)


INT8, WEIGHT_INT8 = (BALANCED.with_edits(f"+linear:{title}") for title in ("int8", "weight_int8"))
PAIRS = {
    "two lists": (INT8, WEIGHT_INT8),
    "two lists, turned": (WEIGHT_INT8, INT8),
    "from lower": (BALANCED, INT8),
    "to lower": (INT8, BALANCED),
    "from float32": (None, WEIGHT_INT8),
    "to float32": (INT8, None),
}


def outputs(layer: nn.Module, x: torch.Tensor, policy: hmp.Policy | None) -> torch.Tensor:
    with torch.no_grad(), hmp.autocast("cpu", policy=policy, enabled=policy is not None):
        return layer(x if policy else x.to(layer.weight.dtype)).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32 model", "bfloat16 model"])
@pytest.mark.parametrize(("a", "b"), PAIRS.values(), ids=PAIRS)
class TestWhatIsMade:
    """By an op that is in 8 bits in one of the runs: between the layer under a and under b, both of what it is given in b."""

    def test_in_each_layer(self, a, b, dtype) -> None:
        model, given = layers().to(dtype), {}
        x = torch.randn(16, 64, dtype=dtype)
        for number in (0, 2):
            model[number].register_forward_pre_hook(lambda _, args, number=number: given.update({number: args[0]}))
        found = hmp.compare(lambda: model(x), a, b)
        rows = {row.module: row for row in found.rows if row.op == "linear"}
        assert {row.kind for row in rows.values()} == {"precision"}
        for number, y in [*given.items()]:
            of_a, of_b = (outputs(model[number], y, policy) for policy in (a, b))
            expected = ((of_b - of_a).norm() / of_a.norm()).item()
            assert rows[f"Sequential: {number}"].made == pytest.approx(expected, rel=1e-3)

    def test_a_loss_has_shares_of_each_layer(self, a, b, dtype) -> None:
        model = nn.Sequential(nn.Linear(64, 64), layers()).to(dtype)
        x = torch.randn(16, 64, dtype=dtype)
        found = hmp.compare(lambda: model(x).float().square().sum().backward(), a, b)
        shares = {row.module: row.share for row in found.rows if row.op == "linear" and row.phase == "forward"}
        assert all(shares[f"Sequential: 1.{number}"] > 0.01 for number in (0, 2)), shares


def test_calls_in_8_bits_are_apart_from_others_of_the_op() -> None:
    """In one module: a row has one list and one dtype."""
    layer, other, x = nn.Linear(8, 8).requires_grad_(False), torch.randn(8, 8), torch.randn(4, 8)

    def step() -> None:
        nn.functional.linear(x, layer.weight)
        nn.functional.linear(x, other)

    found = hmp.compare(step, None, INT8)
    assert {(row.calls, row.runs_in) for row in found.rows} == {(1, ("float32", "int8")), (1, ("float32", "bfloat16"))}


@pytest.mark.parametrize("title", ["int8", "weight_int8"])
def test_where_no_call_is_in_8_bits_a_note_says_so(title) -> None:
    """The two runs have the same numbers then, which says nothing about 8 bits."""
    eight = BALANCED.with_edits(f"+linear:{title}")
    model = layers().requires_grad_(True)
    note = f"No call of linear was in {title} in run b, whose list names it: they ran as in the lower list."
    found = compared(model, BALANCED, eight)
    assert found.same
    assert (note in found.notes, note in str(found)) == (True, True)
    assert f"b bfloat16 (lower instead of {title}: linear, balanced+edits)" in str(compared(model, None, eight))
    with torch.no_grad():
        assert not any("No call" in note for note in compared(model, BALANCED, eight).notes)


def test_a_backward_pass_of_ops_in_8_bits_has_dtypes() -> None:
    """Its products are of the low dtype, in both lists; it had the lists, and that it cannot run in the other dtype."""
    model, x = layers(), torch.randn(16, 64, requires_grad=True)
    for a, b in [*PAIRS.values()][:4]:
        found = hmp.compare(lambda: model(x).float().square().sum().backward(), a, b)
        rows = [row for row in found.rows if row.op == "linear" and row.phase == "backward"]
        assert rows
        for row in rows:
            assert not {"int8", "weight_int8"} & {*row.runs_in}
            assert "other dtype" not in row.unmeasured
