"""Calls are paired where programs differ: fused projections, another kernel of attention, one token at a time, renamed modules."""

from __future__ import annotations

import pytest
import torch

from habana_mp import hmp
from tests.evidence.recordings.programs import NAMES, Engine, by_token, gpt, record, trained, whole

RTOL = 1e-4


def compared(a, b, **terms):
    """Of two recordings, and of the second step beside the first recording."""
    record("a.rec", a)
    record("b.rec", b)
    return [hmp.compare("a.rec", "b.rec", rtol=RTOL, **terms), hmp.compare(b, "a.rec", rtol=RTOL, **terms)]


def mask(model):
    model.h[1].attn.window = 4


def permuted(name):
    def change(model):
        weight = model.get_submodule(name).weight
        weight.data = weight.data.flip(0)

    return change


def epsilon(model):
    model.h[1].norm2.eps = 1e-2


PROGRAMS = {
    "fused projections": (lambda: gpt(fused=True), whole, whole),
    "projections apart": (gpt, whole, whole),
    "attention of several ops": (lambda: gpt(kernel=False), whole, whole),
    "fused, of several ops": (lambda: gpt(fused=True, kernel=False), whole, whole),
    "one token at a time": (gpt, whole, by_token),
    "one token at a time, fused": (lambda: gpt(fused=True), whole, by_token),
    "fused projections, trained": (lambda: gpt(fused=True), trained, trained),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_compute_the_same_are_the_same(name, here):
    make, run_a, run_b = PROGRAMS[name]
    a, b = gpt(), make()
    for found in compared(lambda: run_a(a), lambda: run_b(b)):
        assert found.same, str(found)
        forward = {row.module.partition(": ")[2].rpartition(".")[2] for row in found.rows if row.phase == "forward"}
        assert forward <= {"attn", ""}, str(found)
    for found in compared(lambda: run_b(b), lambda: run_a(a)):
        assert found.same, str(found)


# What is changed in run b, which is another program too -> the module and the ops that may be named. A mask of one token has other sizes than
# that of a whole sequence, so there the first op of the mask is named.
PLANTED = {
    "another mask": (mask, "h.1.attn", {"sub", "arange", "scaled_dot_product_attention"}),
    "a permuted weight": (permuted("h.1.up"), "h.1.up", {"linear"}),
    "another epsilon": (epsilon, "h.1.norm2", {"layer_norm"}),
}


@pytest.mark.parametrize("change", PLANTED)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_planted_difference_is_named(name, change, here):
    make, run_a, run_b = PROGRAMS[name]
    plant, module, ops = PLANTED[change]
    a, b = gpt(), make()
    plant(b)
    for found in compared(lambda: run_a(a), lambda: run_b(b)):
        assert not found.same
        assert (found.first.module.partition(": ")[2], found.first.op in ops) == (module, True), str(found)


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


def test_a_stale_cache_of_keys_is_named(here):
    a, b = gpt(), gpt()
    b.h[1].attn.stale = True
    for found in compared(lambda: whole(a), lambda: by_token(b)):
        assert not found.same
        assert found.first.module == "GPT: h.1.attn", str(found)
        assert found.first.op in ("cat", "copy_", "scaled_dot_product_attention")


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
