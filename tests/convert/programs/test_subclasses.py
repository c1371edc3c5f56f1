"""Tensor subclasses under convert: they keep their type and see torch's own functions, never a patched one."""

import contextlib
import functools
import operator

import pytest
import torch
import torch.nn.attention.bias
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
A = torch.linspace(-1, 1, 16).view(4, 4)


class Plain(torch.Tensor):
    """A subclass without handlers of its own."""


class Logging(torch.Tensor):
    """Records what __torch_function__ is passed."""

    calls = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(torch.Tensor):
    """A __torch_dispatch__ wrapper round a tensor; records the aten ops."""

    calls = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func)
        unwrap = functools.partial(torch.utils._pytree.tree_map_only, cls, lambda t: t.inner)
        out = func(*unwrap(args), **unwrap(kwargs or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, cls, out)


# What NumPy-like libraries do: a table of implementations by torch's functions, filled when they are imported.
HANDLED_FUNCTIONS = {}


class Scaled:
    """No tensor at all: a duck type with __torch_function__."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED_FUNCTIONS:
            return NotImplemented
        return HANDLED_FUNCTIONS[func](*args, **(kwargs or {}))


def implements(*functions):
    def decorate(function):
        HANDLED_FUNCTIONS.update(dict.fromkeys(functions, function))
        return function

    return decorate


@implements(torch.mm, torch.matmul)
def _mm(a, b):
    return "mm", getattr(a, "value", a), getattr(b, "value", b)


@implements(F.softmax, torch.softmax)
def _softmax(x, *args, **kwargs):
    return "softmax", x.value


@implements(F.layer_norm)
def _layer_norm(x, *args, **kwargs):
    return "layer_norm", x.value


@implements(torch.cat, torch.stack)
def _cat(tensors, *args, **kwargs):
    return "cat", [getattr(t, "value", t) for t in tensors]


@implements(F.relu)
def _relu(x, inplace=False):
    return "relu", x.value, inplace


@implements(torch.add)
def _add(a, b):
    return "add", getattr(a, "value", a), getattr(b, "value", b)


# One call of each kind of home: what may override it is the second argument. Ops are looked up when called.
# ruff: noqa: PLW0108
CALLS = {
    "torch.mm": lambda a, s: torch.mm(s, a),
    "Tensor.mm": lambda a, s: torch.Tensor.mm(a, s),
    "a @ s": lambda a, s: a @ s,
    "a + s": lambda a, s: a + s,
    "a += s": lambda a, s: operator.iadd(a, s),
    "a - s": lambda a, s: a - s,
    "a -= s": lambda a, s: operator.isub(a, s),
    "a * s": lambda a, s: a * s,
    "a *= s": lambda a, s: operator.imul(a, s),
    "a / s": lambda a, s: a / s,
    "a /= s": lambda a, s: operator.itruediv(a, s),
    "a % s": lambda a, s: a % s,
    "a // s": lambda a, s: a // s,
    "a ** s": lambda a, s: a**s,
    "Tensor.__radd__": lambda a, s: torch.Tensor.__radd__(a, s),
    "Tensor.__rsub__": lambda a, s: torch.Tensor.__rsub__(a, s),
    "Tensor.__rmul__": lambda a, s: torch.Tensor.__rmul__(a, s),
    "Tensor.add_": lambda a, s: a.add_(s),
    "F.linear": lambda a, s: F.linear(a, s),
    "F.softmax": lambda a, s: F.softmax(s, -1),
    "F.layer_norm": lambda a, s: F.layer_norm(s, [4]),
    "F.gelu": lambda a, s: F.gelu(s, approximate="tanh"),
    "F.cross_entropy": lambda a, s: F.cross_entropy(a, s),
    "F.relu": lambda a, s: F.relu(s, inplace=True),
    "torch.einsum": lambda a, s: torch.einsum("ij,jk", a, s),
    "torch.cat": lambda a, s: torch.cat([a, s]),
    "torch.linalg.norm": lambda a, s: torch.linalg.norm(s, ord=2),
    "torch.special.softmax": lambda a, s: torch.special.softmax(s, 0),
    "torch.fft.fft": lambda a, s: torch.fft.fft(s, n=4),
}


@pytest.fixture(autouse=True)
def _forget():
    Logging.calls.clear()
    Wrapper.calls.clear()


class TestTorchFunction:
    @pytest.mark.parametrize("converted_first", [True, False], ids=["made-under-convert", "made-before"])
    @pytest.mark.parametrize("cls", [Plain, Logging])
    def test_the_type_is_kept(self, cls, converted_first):
        if converted_first:
            hmp.convert()
        t = A.as_subclass(cls)
        hmp.convert()
        results = [
            torch.mm(t, A), t @ A, A @ t, t.mm(A), F.linear(A, t), F.softmax(t.bfloat16(), -1), F.layer_norm(t, [4]), torch.cat([A, t]),
            t + A.bfloat16(), t.clone().mul_(A), F.mse_loss(t.bfloat16(), A), F.dropout(t, 0.0), 1 / t.abs().add(1),
        ]  # fmt: skip
        assert {type(result) for result in results} == {cls}
        assert [r.dtype for r in results[:8]] == [BF16, BF16, BF16, BF16, BF16, FP32, BF16, FP32]

    def test_results_are_those_of_plain_tensors(self):
        hmp.convert()
        t = A.as_subclass(Logging)
        for function in (
            lambda x: x @ x,
            lambda x: F.softmax(x @ x, -1),
            lambda x: F.layer_norm(x, [4]),
            lambda x: x * x + x,
        ):
            assert torch.equal(function(t).as_subclass(torch.Tensor), function(A))

    @pytest.mark.parametrize(
        ("call", "function"),
        [
            (lambda t: torch.mm(t, A), "torch.mm"),
            (lambda t: t.mm(A), "torch.Tensor.mm"),
            (lambda t: F.linear(A, t), "F.linear"),
            (lambda t: F.softmax(t.bfloat16(), -1), "F.softmax"),
            (lambda t: F.layer_norm(t, [4]), "F.layer_norm"),
            (lambda t: torch.cat([A, t]), "torch.cat"),
            (lambda t: torch.relu(t), "torch.relu"),
            (lambda t: torch.Tensor.add_(t, A.bfloat16()), "torch.Tensor.add_"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_the_handler_gets_what_stands_in_torch(self, call, function):
        """`func is F.linear`, as torch's own handlers ask; and a table made before convert has it."""

        def named():
            return functools.reduce(getattr, function.split(".")[1:], {"torch": torch, "F": F}[function.split(".")[0]])

        original = named()
        hmp.convert()
        call(A.clone().as_subclass(Logging))
        assert [f for f in Logging.calls if f is named()]
        assert {original: "found"}[next(f for f in Logging.calls if f is named())] == "found"
        assert original in Logging.calls

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
    def test_torch_s_own_handlers_ask_by_identity(self):
        """CausalBias and jagged nested tensors test `func is F.scaled_dot_product_attention`."""
        q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
        nested = torch.nested.nested_tensor(
            [torch.randn(3, 2, 4), torch.randn(2, 2, 4)], layout=torch.jagged
        ).transpose(1, 2)

        def run():
            bias = torch.nn.attention.bias.causal_lower_right(3, 5)
            jagged = F.scaled_dot_product_attention(nested, nested, nested)
            return F.scaled_dot_product_attention(q, k, k, attn_mask=bias), jagged.values()

        expected = run()
        hmp.convert()
        found = run()
        assert [type(t) for t in found] == [torch.Tensor, torch.Tensor]
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))

    def test_handlers_registered_under_convert_by_function(self):
        hmp.convert()
        table = {torch.mm: "mm", F.relu: "relu", torch.Tensor.add: "add"}

        class Handled(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return table.get(func) or super().__torch_function__(func, types, args, kwargs or {})

        t = A.as_subclass(Handled)
        assert (torch.mm(t, A), F.relu(t), t + A) == ("mm", "relu", "add")
        hmp.revert()
        assert (torch.mm(t, A), F.relu(t), t + A) == ("mm", "relu", "add")

    def test_handlers_registered_before_convert_by_function(self):
        s = Scaled(A)

        def calls():
            return [
                torch.mm(s, A), torch.matmul(A, s), F.softmax(s, -1), F.layer_norm(s, [4]), torch.cat([s, A]), torch.stack((A, s)),
                F.relu(s, inplace=True), torch.add(s, s), torch.softmax(s, 0),
            ]  # fmt: skip

        expected = [call[0] for call in calls()]
        hmp.convert()
        assert [call[0] for call in calls()] == expected
        with pytest.raises(TypeError, match="bmm"):
            torch.bmm(s, s)

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("kind", ["no-tensor", "subclass", "mode"])
    @pytest.mark.parametrize("casts", ["on", "off"])
    def test_who_overrides_gets_the_same_as_without_a_conversion(self, call, kind, casts):
        seen = []

        def record(cls, func, types, args=(), kwargs=None):
            if func is torch.Tensor.to:  # the cast of a subclass, which it may do in its own way
                return torch.Tensor._make_subclass(type(args[0]), args[0].as_subclass(torch.Tensor).to(args[1]))
            seen.append(func)
            return "handled"

        duck = type("Duck", (), {"__torch_function__": classmethod(record)})
        subclass = type("Subclass", (torch.Tensor,), {"__torch_function__": classmethod(record)})
        mode = type("Mode", (TorchFunctionMode,), {"__torch_function__": record})
        value = {"no-tensor": duck, "subclass": lambda: A.as_subclass(subclass), "mode": A.clone}[kind]()

        def run():
            a = A.clone()
            with mode() if kind == "mode" else contextlib.nullcontext():
                return CALLS[call](a, value)

        assert run() == "handled"
        hmp.convert(opt_level="O2")
        with hmp.disable_casts() if casts == "off" else contextlib.nullcontext():
            assert run() == "handled"
        assert seen[0] == seen[1]

    def test_an_operand_that_refuses_leaves_it_to_the_other(self):
        class Refuses:
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return NotImplemented

            # What Python asks then.
            def __radd__(self, other):
                return "radd"

            __rmatmul__ = __rsub__ = __radd__

        expected = [A + Refuses(), A @ Refuses(), A - Refuses()]
        hmp.convert(opt_level="O2")
        assert [A + Refuses(), A @ Refuses(), A - Refuses()] == expected == ["radd"] * 3
        with pytest.raises(TypeError, match=r"no implementation found for .*mm"):
            A.mm(Refuses())

    def test_nn_modules_on_a_subclass(self):
        hmp.convert()
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
        out = model(A.as_subclass(Plain))
        assert (type(out), out.dtype) == (Plain, BF16)
        out.float().sum().backward()
        assert {parameter.grad.dtype for parameter in model.parameters()} == {FP32}

    def test_a_subclass_as_parameter(self):
        class Weight(nn.Parameter):
            pass

        layer = nn.Linear(4, 4)
        layer.weight = Weight(layer.weight.detach())
        hmp.convert()
        out = layer(A)
        out.float().sum().backward()
        assert (type(out), out.dtype, type(layer.weight.grad), layer.weight.grad.dtype) == (
            torch.Tensor,
            BF16,
            torch.Tensor,
            FP32,
        )

    def test_disable_torch_function_subclass(self):
        hmp.convert()
        t = A.as_subclass(Logging)
        with torch._C.DisableTorchFunctionSubclass():
            out = torch.mm(t, t)
        assert (type(out), out.dtype, Logging.calls) == (torch.Tensor, BF16, [])

    def test_casts_off_inside_a_handler_stay_off(self):
        class Off(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                with hmp.disable_casts():
                    return super().__torch_function__(func, types, args, kwargs or {})

        hmp.convert()
        assert torch.add(A.as_subclass(Off), A).dtype == FP32
        assert torch.mm(A, A).dtype == BF16


class TestTorchDispatch:
    @pytest.mark.parametrize(
        ("call", "dtype", "aten"),
        [
            (lambda t: torch.mm(t, t), BF16, "mm"),
            (lambda t: t @ t, BF16, "mm"),
            (lambda t: F.linear(t, t), BF16, "mm"),
            (lambda t: F.softmax(t @ t, -1), FP32, "_softmax"),
            (lambda t: torch.cat([t, t @ t]), FP32, "cat"),
            (lambda t: F.layer_norm(t, [4]), BF16, "native_layer_norm"),
        ],
        ids=["mm", "matmul", "linear", "softmax", "cat", "layer_norm"],
    )
    def test_the_type_is_kept_and_the_cast_is_seen(self, call, dtype, aten):
        hmp.convert()
        out = call(Wrapper(A))
        names = [func._schema.name.removeprefix("aten::") for func in Wrapper.calls]
        assert (type(out), out.dtype, out.inner.dtype) == (Wrapper, dtype, dtype)
        assert aten in names
        assert "_to_copy" in names
        expected = call(A)
        hmp.revert()
        assert torch.equal(out.inner, expected)

    def test_gradients(self):
        hmp.convert()
        t = Wrapper(A.clone()).requires_grad_()
        (t @ t).sum().backward()
        assert (type(t.grad), t.grad.dtype) == (Wrapper, FP32)


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("offset", torch.randn(4))

    def forward(self, x):
        return torch.relu(torch.matmul(x, self.weight) * self.offset)


def test_symbolic_trace_keeps_parameters_and_buffers():
    """A stand-in takes a call as it was written: nothing beside it is cast, or a parameter would become a constant."""
    hmp.convert()
    model = Affine()
    traced = torch.fx.symbolic_trace(model)
    assert set(traced.state_dict()) == {"weight", "offset"}
    assert {node.op for node in traced.graph.nodes} == {"placeholder", "get_attr", "call_function", "output"}
    assert torch.equal(traced(A), model(A))
    assert traced(A).dtype == BF16
    hmp.revert()
    assert torch.equal(traced(A), model(A))
    assert traced(A).dtype == FP32
