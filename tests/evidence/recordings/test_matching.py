"""Calls are paired where programs differ: fused projections, another kernel of attention, one token at a time, renamed modules."""

from __future__ import annotations

import pytest
import torch

from habana_mp import hmp
from tests.evidence.recordings.planted.plants import PROGRAMS
from tests.evidence.recordings.programs import NAMES, TOKENS, Engine, by_token, gpt, record, whole

RTOL = 1e-4


def compared(a, b, **terms):
    """Of two recordings, and of the second step beside the first recording."""
    record("a.rec", a)
    record("b.rec", b)
    return [hmp.compare("a.rec", "b.rec", rtol=RTOL, **terms), hmp.compare(b, "a.rec", rtol=RTOL, **terms)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_compute_the_same_are_the_same(name, here):
    program = PROGRAMS[name]
    a, b = gpt(), program.make()
    for found in compared(lambda: program.run_a(a), lambda: program.run_b(b)):
        assert found.same, str(found)
        forward = {row.module.partition(": ")[2].rpartition(".")[2] for row in found.rows if row.phase == "forward"}
        assert forward <= {"attn", ""}, str(found)
    for found in compared(lambda: program.run_b(b), lambda: program.run_a(a)):
        assert found.same, str(found)


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_permuted_weight_of_a_fused_projection_is_named(part, here):
    a, b = gpt(), gpt(fused=True)
    weight = b.h[0].attn.qkv.weight.data.view(3, 64, 64)
    weight[" qkv".index(part) - 1] = weight[" qkv".index(part) - 1].flip(0)
    for found in compared(lambda: whole(a), lambda: whole(b)):
        assert found.first.module == "GPT: h.0.attn.qkv", str(found)
        assert found.first.counterpart == ", ".join(f"linear in GPT: h.0.attn.{each}" for each in "qkv")
        assert "in run a linear in GPT: h.0.attn.q, linear in" in str(found)
    for found in compared(lambda: whole(b), lambda: whole(a)):
        assert found.first.module == f"GPT: h.0.attn.{part}", str(found)
        assert found.first.counterpart == "linear in GPT: h.0.attn.qkv"


def test_parts_are_never_the_same_bits(here):
    a, b = gpt(), gpt()
    record("a.rec", lambda: whole(a))
    record("b.rec", lambda: by_token(b))
    found = hmp.compare("a.rec", "b.rec")
    assert not found.same
    assert any("so without rtol they never count as the same" in note for note in found.notes)


def test_renamed_modules_are_paired(here):
    a, b = gpt(), Engine(gpt())
    for found in compared(lambda: whole(a), lambda: whole(b), modules=NAMES):
        assert found.same, str(found)
        assert found.rows == ()
    for found in compared(lambda: whole(a), lambda: whole(b)):
        assert not found.same  # nothing but ops outside of modules is paired
    with torch.no_grad():
        b.model.layers[1].norm2.bias += 1
    for found in compared(lambda: whole(a), lambda: whole(b), modules=NAMES):
        assert found.first.module == "Engine: model.layers.1.norm2"
        assert found.first.counterpart == "layer_norm in GPT: h.1.norm2"
    for found in compared(lambda: whole(a), lambda: whole(b), modules=NAMES | {"h.*.norm2": "model.layers.*.norm2"}):
        assert found.first.module == "Engine: model.layers.1.norm2"


def test_the_class_of_the_outermost_module_does_not_matter(here):
    class Other(type(gpt())):
        pass

    a, b = gpt(), gpt()
    b.__class__ = Other
    for found in compared(lambda: whole(a), lambda: whole(b)):
        assert found.same, str(found)
        assert found.calls > 10


class Summed(torch.nn.Module):
    """An op of the outermost module itself."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 8)

    def forward(self, tokens):
        return torch.tanh(self.words(tokens) + 0.1)


def test_calls_of_the_outermost_module_are_parts_too(here):
    torch.manual_seed(0)
    model = Summed()
    record("a.rec", lambda: [model(each) for each in TOKENS.split(1, 1)])
    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["add"], fp32=["tanh"], name="low")):
        found = hmp.compare(lambda: model(TOKENS), "a.rec", rtol=1e-4)
    assert (found.first.op, found.first.kind, found.first.module) == ("add", "precision", "Summed"), str(found)
    # The op ran once more, as each of the calls for one token.
    assert (found.first.share, found.first.unmeasured) == (1, "")
    assert 1e-3 < found.first.made < 4e-3
    assert all(row.kind != "only in b" for row in hmp.compare(lambda: model(TOKENS), "a.rec", rtol=1e-4).rows)


@pytest.mark.parametrize(("rtol", "named"), [(1e-4, "to"), (1e-2, None)])
def test_a_cast_that_rounds_more_than_the_tolerance_is_named(rtol, named, here):
    x = torch.rand(16, 8)
    record("a.rec", lambda: torch.exp(x.bfloat16().float()))
    found = hmp.compare(lambda: torch.exp(x), "a.rec", rtol=rtol)
    assert (found.first and found.first.op, found.same) == (named, named is None), str(found)
