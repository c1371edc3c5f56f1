"""An interrupt inside convert and revert: all of it or none of it (D7)."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from namespaces import F16, F32, a, changed, snapshot

from habana_mp import hmp
from habana_mp._convert import conversion

INTERRUPTED = """
    import random, signal, sys, time
    import torch
    from habana_mp._policy.homes import homes
    from habana_mp import hmp

    found = homes()
    def held():
        return [getattr(home.owner, home.attribute) for home in found]
    native = held()
    hmp.convert()
    converted = held()
    hmp.revert()

    start = time.perf_counter()
    for _ in range(5):
        hmp.convert()
        hmp.revert()
    both = (time.perf_counter() - start) / 5

    random.seed(0)
    interrupts = 0
    for round in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, both * 1.1))
            hmp.convert()
            hmp.revert()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
        now = held()
        expected = converted if hmp.is_converted() else native
        assert all(x is y for x, y in zip(now, expected)), "half converted"
        dtype = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype
        assert (dtype == torch.bfloat16) == hmp.is_converted(), dtype
        hmp.revert()
        assert all(x is y for x, y in zip(held(), native)), "not all came back"
    import gc
    assert gc.isenabled()
    print("interrupts", interrupts)
"""


def test_an_interrupt_leaves_all_or_nothing():
    """A real signal, at any moment of convert and revert."""
    script = "import signal\nsignal.signal(signal.SIGALRM, signal.default_int_handler)\n" + textwrap.dedent(INTERRUPTED)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[1]) > 50


class Interrupting:
    """Stands for a ``__setattr__`` in Python, which the interpreter interrupts at its start or its end at the nth of its calls."""

    def __init__(self, monkeypatch, nth, late):
        self.kind, self.nth, self.late, self.calls = type(torch.compiler.config), nth, late, 0
        native = self.kind.__setattr__

        def setattr_(module, name, value):
            if name != "cache_key_tag":  # on torch 2.11 an assignment marks the module as changed, by another one
                return native(module, name, value)
            self.calls += 1
            if late:
                native(module, name, value)
            if self.calls == nth:
                raise KeyboardInterrupt
            return native(module, name, value) if not late else None

        monkeypatch.setattr(self.kind, "__setattr__", setattr_)


late = pytest.mark.parametrize("late", [False, True], ids=["before", "after"])


@late
def test_an_interrupt_inside_the_first_convert_converts_nothing(late, monkeypatch, pristine):
    """D7: one assignment runs Python code, where a signal handler can raise."""
    tag = torch.compiler.config.cache_key_tag
    with monkeypatch.context() as patch:
        Interrupting(patch, 1, late)
        with pytest.raises(KeyboardInterrupt):
            hmp.convert()
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32
    assert torch.compiler.config.cache_key_tag == tag


@late
@pytest.mark.parametrize("nth", [1, 2])
def test_an_interrupt_inside_a_second_convert_leaves_the_first_in_force(nth, late, monkeypatch, pristine):
    """D7: while the first is undone, and while the second is made."""
    untagged = torch.compiler.config.cache_key_tag
    hmp.convert(low_precision_type=F16)
    first, tag = snapshot(), torch.compiler.config.cache_key_tag
    with monkeypatch.context() as patch:
        Interrupting(patch, nth, late)
        with pytest.raises(KeyboardInterrupt):
            hmp.convert("O2")
    assert changed(first, snapshot()) == []
    assert hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F16
    assert torch.compiler.config.cache_key_tag == tag
    hmp.revert()
    assert changed(pristine, snapshot()) == []
    assert torch.compiler.config.cache_key_tag == untagged


@late
def test_an_interrupt_inside_revert_undoes_all(late, monkeypatch, pristine, tmp_path):
    """D7: and what belongs to the conversion besides its patches goes with it."""
    tag, ended = torch.compiler.config.cache_key_tag, []
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path / 'log'}")
    hmp.convert()
    with monkeypatch.context() as patch:
        Interrupting(patch, 1, late)
        patch.setattr(conversion.log, "close_log", lambda: ended.append("log"))
        patch.setattr(conversion.dynamo, "drop_stale_graphs", lambda: ended.append("graphs"))
        with pytest.raises(KeyboardInterrupt):
            hmp.revert()
    conversion.log.close_log()
    assert ended == ["log", "graphs"]
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32
    assert torch.compiler.config.cache_key_tag == tag


PARTS = ("_weights.open_cache", "births.watch", "torch_autocast.reach_transformers")


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_an_interrupt_beside_the_patches_converts_nothing(part, first, monkeypatch, pristine):
    """D7: whatever convert does besides them, the conversion that was in force stays."""
    if not first:
        hmp.convert(low_precision_type=F16)
    before = snapshot()
    owner, name = part.split(".")
    with monkeypatch.context() as patch:
        calls = []
        native = getattr(getattr(conversion, owner), name)
        # The second call puts the settings of the first conversion back.
        patch.setattr(
            getattr(conversion, owner), name, lambda *of: native(*of) if calls else interrupted(calls.append(1))
        )
        with pytest.raises(KeyboardInterrupt):
            hmp.convert("O2")
    assert changed(before, snapshot()) == []
    assert hmp.is_converted() is not first
    assert torch.mm(a(), a()).dtype == (F32 if first else F16)
    hmp.revert()
    assert changed(pristine, snapshot()) == []


def test_revert_ends_all_parts_even_if_one_raises(monkeypatch, pristine):
    ended = []
    hmp.convert()
    with monkeypatch.context() as patch:
        patch.setattr(conversion._weights, "close_cache", interrupted)
        patch.setattr(conversion.births, "unwatch", lambda: ended.append("births"))
        patch.setattr(conversion.torch_autocast, "leave_transformers", lambda: ended.append("transformers"))
        patch.setattr(conversion.dynamo, "drop_stale_graphs", lambda: ended.append("graphs"))
        with pytest.raises(KeyboardInterrupt):
            hmp.revert()
    assert ended == ["births", "transformers", "graphs"]
    for part in (
        conversion._weights.close_cache,
        conversion.births.unwatch,
        conversion.torch_autocast.leave_transformers,
    ):
        part()
    assert changed(pristine, snapshot()) == []
