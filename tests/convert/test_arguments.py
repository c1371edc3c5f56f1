"""The tensors among the arguments of a call: which comes first, who owns them, how their containers are rebuilt (D13, D15)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp

F32, BF16 = torch.float32, torch.bfloat16


def in_c(op, *args, **kwargs):
    return op(*args, **kwargs)


def in_python(op, *args, **kwargs):
    """By the rule that torch.compile traces."""
    return op.__call__(*args, **kwargs)


both_front_ends = pytest.mark.parametrize("call", [in_c, in_python])


# ---- keywords in any order


@both_front_ends
@pytest.mark.parametrize(("first", "second"), [(BF16, F32), (F32, BF16)])
def test_the_input_comes_first_wherever_its_keyword_stands(call, first, second):
    """D15."""
    hmp.convert()
    x, y = torch.ones(3, dtype=first), torch.zeros(3, dtype=second)
    assert call(F.mse_loss, x, y).dtype == first
    assert call(F.mse_loss, input=x, target=y).dtype == first
    assert call(F.mse_loss, target=y, input=x).dtype == first
    assert call(F.mse_loss, target=y, reduction="sum", input=x).dtype == first
    assert call(F.mse_loss, x, reduction="sum", target=y).dtype == first
    # By a dict whose keys are not the interned names.
    assert call(F.mse_loss, **{name.lower(): value for name, value in (("TARGET", y), ("INPUT", x))}).dtype == first


@both_front_ends
def test_arguments_by_position_come_before_the_keyword_input(call):
    """D15: the condition is the first argument, and has no dtype to give."""
    hmp.convert()
    condition = torch.tensor([True, False])
    x, y = torch.ones(2, dtype=BF16), torch.zeros(2)
    assert call(torch.where, condition, input=x, other=y).dtype == BF16
    assert call(torch.where, condition, other=y, input=x).dtype == BF16
    assert call(torch.where, other=y, input=x, condition=condition).dtype == BF16


# ---- containers


class Pair(tuple):
    """Its constructor takes the items one by one, as that of a named tuple does."""

    __slots__ = ()

    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))


@both_front_ends
@pytest.mark.parametrize("kind", [Pair, lambda a, b: torch.return_types.sort((a, b))], ids=["Pair", "sort"])
def test_tuples_with_a_constructor_of_their_own(call, kind):
    """D13: the op gets a tuple of the same type."""
    pair = kind(torch.ones(2, dtype=BF16), torch.zeros(2))
    assert torch.cat(pair).dtype == F32
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.extend(args)
            return func(*args, **(kwargs or {}))

    hmp.convert()
    assert torch.equal(call(torch.cat, pair), torch.tensor([1.0, 1, 0, 0]))
    with Mode():
        call(torch.cat, pair)
    container = next(value for value in seen if isinstance(value, tuple))
    assert type(container) is type(pair)
    assert pair[0].dtype == BF16


# ---- owned while the call lasts

REPLACED = """
    import sys
    import torch
    from habana_mp import hmp

    class Proxy:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return "proxy"

    class Replacing:
        def write(self, text):
            if "cat" in text:
                items[:] = [torch.zeros(3) for _ in items]
        def flush(self):
            pass

    hmp.convert(isVerbose=True)
    sys.stdout = Replacing()
    for _ in range(20):
        items = [torch.ones(3).bfloat16() for _ in range(40)] + [torch.ones(3)]
        result = torch.cat(items)
        assert result.dtype == torch.float32 and result[:120].eq(1).all(), result
        items = [torch.ones(3).bfloat16(), torch.ones(3), Proxy()]
        assert torch.cat(items) == "proxy"
"""


def test_a_list_that_changes_while_the_call_is_logged():
    """The log's stream is Python code, and drops what the list held."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REPLACED)],
        env={**os.environ, "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
