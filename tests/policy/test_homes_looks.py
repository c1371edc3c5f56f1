"""Patched ops look, bind and answer as torch's own (D16)."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

import copy
import inspect
import weakref
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from home_calls import BF16, a, b

from habana_mp import hmp

LOOKED_AT = {
    "builtin function": lambda: torch.mm,
    "builtin of a module": lambda: F.linear,
    "Python function": lambda: F.relu,
    "Python function of torch": lambda: torch.einsum,
    "method": lambda: torch.Tensor.mm,
    "operator": lambda: torch.Tensor.__add__,
    "Python operator": lambda: torch.Tensor.__rsub__,
}


@pytest.fixture(params=LOOKED_AT.values(), ids=LOOKED_AT.keys())
def get(request):
    return request.param


@pytest.mark.parametrize("attribute", ["__name__", "__doc__"])
def test_attributes_are_those_of_the_original(get, attribute):
    expected = getattr(get(), attribute)
    hmp.convert(policy="hmp-o2")
    assert getattr(get(), attribute) == expected


def test_module_is_that_of_the_original(get):
    expected = getattr(get(), "__module__", "torch")  # methods have none
    hmp.convert(policy="hmp-o2")
    assert get().__module__ == expected


def test_signature_is_that_of_the_original(get):
    def signature():
        try:
            return inspect.signature(get())
        except ValueError as error:  # builtins tell none
            return str(error)

    expected = signature()
    hmp.convert(policy="hmp-o2")
    assert signature() == expected


def test_repr_shows_the_original(get):
    expected = repr(get())
    hmp.convert(policy="hmp-o2")
    assert repr(get()) == f"<habana_mp patched op around {expected}>"


def test_it_is_a_value_that_can_be_kept(get):
    hmp.convert(policy="hmp-o2")
    op = get()
    assert op is get()
    assert callable(op)
    assert {op: 1}[op] == 1
    assert weakref.ref(op)() is op
    assert copy.copy(op) is op
    assert copy.deepcopy(op) is op
    op.note = "kept"
    assert op.note == "kept"
    del op.note


def test_unwrap_gives_the_original(get):
    original = get()
    hmp.convert(policy="hmp-o2")
    assert inspect.unwrap(get()) is inspect.unwrap(original)
    assert get().__wrapped__ is original


class Holder:
    """Ops stored on a class: a builtin is a plain attribute, methods and Python functions bind."""

    ops: ClassVar = {
        "builtin": lambda: torch.abs,
        "builtin of torch._C._nn": lambda: F.gelu,
        "method": lambda: torch.Tensor.abs,
        "Python function": lambda: F.softsign,
        "operator": lambda: torch.Tensor.__abs__,
    }


@pytest.mark.parametrize("get_op", Holder.ops.values(), ids=Holder.ops.keys())
def test_binding_is_that_of_the_original(get_op):
    """D16."""

    def bound():
        holder = type("holder", (torch.Tensor,), {"stored": get_op()})
        instance = torch.ones(2).as_subclass(holder)
        return [
            outcome(lambda: instance.stored()),
            outcome(lambda: instance.stored(torch.ones(2))),
            outcome(lambda: holder.stored(instance)),
        ]

    def outcome(call):
        try:
            return type(call()).__name__
        except TypeError:
            return "TypeError"

    expected = bound()
    assert "TypeError" in expected
    hmp.convert(policy="hmp-o2")
    assert bound() == expected


def test_bound_methods_are_cast():
    hmp.convert()
    x = a()
    method = x.mm
    assert method.__self__ is x
    assert method.__name__ == "mm"
    assert method(b()).dtype == BF16
    assert list(map(x.mm, [b()]))[0].dtype == BF16  # noqa: RUF015
    assert torch.Tensor.mm.__get__(x)(b()).dtype == BF16


def test_operators_answer_strangers_as_torch_does():
    """NotImplemented reaches Python, which asks the other operand."""

    class Stranger:
        def __radd__(self, other):
            return "radd"

        def __rmatmul__(self, other):
            return "rmatmul"

    hmp.convert()
    assert a() + Stranger() == "radd"
    assert a() @ Stranger() == "rmatmul"
    with pytest.raises(TypeError, match="unsupported operand"):
        a() @ "text"


def test_errors_of_the_original_come_through():
    hmp.convert()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.mm(a(), torch.ones(3, 3))
    with pytest.raises(TypeError, match=r"mm\(\): argument 'mat2'"):
        torch.mm(a(), 3)
    with pytest.raises(TypeError):
        torch.mm()


class Stand:
    """No tensor, but torch's functions ask it what to do: proxies of torch.fx, containers of tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func


STAND_INS = {
    "torch.mm": lambda s: torch.mm(s, a()),
    "torch.stack": lambda s: torch.stack([a(), s]),
    "torch.einsum": lambda s: torch.einsum("ij,jk->ik", a(), s),
    "torch.norm": lambda s: torch.norm(s),
    "torch.special.softmax": lambda s: torch.special.softmax(s, 0),
    "torch.linalg.inv": lambda s: torch.linalg.inv(s),
    "F.linear": lambda s: F.linear(a(), weight=s),
    "F.relu": lambda s: F.relu(s),
    "F.layer_norm": lambda s: F.layer_norm(s, (2,)),
    "F.max_pool2d": lambda s: F.max_pool2d(s, 2),
    "F.gelu": lambda s: F.gelu(s),
    "Tensor.mm": lambda s: a().mm(s),
    "Tensor.add_": lambda s: a().add_(s),
}


@pytest.mark.parametrize("call", STAND_INS.values(), ids=STAND_INS.keys())
def test_what_stands_in_for_a_tensor_gets_what_equals_the_original(call):
    """Its __torch_function__ looks functions up in tables that know torch's own."""
    expected = call(Stand())
    hmp.convert(policy="hmp-o2")
    assert call(Stand()) == expected
