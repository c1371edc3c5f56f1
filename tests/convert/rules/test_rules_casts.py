"""The casts of a rule: where they stand in the graph, which gradients come back, and layout and values as those of Tensor.to (F18)."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from arrived_calls import BF16, F16, F32, arrived, image, named_cases, policy, x
from torch import nn

from habana_mp import hmp

# ---- gradients


def cast_nodes(result):
    """The casts in a graph, as (from, to) is not to be seen there: their number."""
    seen, waiting, count = set(), [result.grad_fn], 0
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        count += node.name() in ("ToCopyBackward0", "CopyBackwards")
        waiting += [following for following, _ in node.next_functions]
    return count


@pytest.mark.parametrize(
    ("call", "nodes"),
    named_cases({
        "mm": (lambda a, w: torch.mm(a, w), 2),
        "mm of one tensor": (lambda a, w: torch.mm(a, a), 1),
        "linear": (lambda a, w: F.linear(a, w), 2),
        "two uses of a weight": (lambda a, w: torch.mm(torch.mm(a, w), w), 3),
        "nothing to cast": (lambda a, w: torch.exp(a), 0),
        "up and down": (lambda a, w: torch.softmax(torch.mm(a, w), 0), 3),
    }),
)  # fmt: skip
def test_casts_stand_in_the_graph(call, nodes):
    """F18."""
    hmp.convert()
    a, w = x().requires_grad_(), x().requires_grad_()
    assert cast_nodes(call(a, w)) == nodes


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: nn.Linear(2, 3), x),
        (lambda: nn.Conv2d(2, 1, 2), image),
        (lambda: nn.ConvTranspose2d(2, 1, 2), image),
        (lambda: nn.LSTM(2, 3), lambda: x(F32, 1, 2, 2)),
        (lambda: nn.GRUCell(2, 3), x),
        (lambda: nn.Bilinear(2, 2, 3), x),
        (lambda: nn.PReLU(), x),
        (lambda: nn.TransformerEncoderLayer(2, 1, 2), lambda: x(F32, 1, 2, 2)),
    ],
    ids=["Linear", "Conv2d", "ConvTranspose2d", "LSTM", "GRUCell", "Bilinear", "PReLU", "TransformerEncoderLayer"],
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_gradients_come_in_the_dtype_of_their_tensor(make, given, dtype):
    """F242, F245."""
    hmp.convert()
    module, a = make(), given().to(dtype).requires_grad_()
    result = module(a, a) if isinstance(module, nn.Bilinear) else module(a)
    (result[0] if isinstance(result, tuple) else result).float().sum().backward()
    assert a.grad.dtype == dtype
    assert {parameter.grad.dtype for parameter in module.parameters()} == {F32}


def test_casts_of_tensors_without_grad_need_none():
    hmp.convert()
    assert not torch.mm(x(), x()).requires_grad
    with torch.no_grad():
        assert not torch.mm(x().requires_grad_(), x()).requires_grad
    with torch.inference_mode():
        assert torch.mm(x(), x()).is_inference()


# ---- layout and values

LAYOUTS = {
    "contiguous": lambda: torch.ones(2, 3, 4, 5),
    "transposed": lambda: torch.ones(2, 3, 5, 4).transpose(2, 3),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last, one channel": lambda: torch.ones(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "channels last, one pixel": lambda: torch.ones(2, 3, 1, 1).to(memory_format=torch.channels_last),
    "one channel, large": lambda: torch.ones(2, 1, 64, 64).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.ones(1, 3, 1, 5).expand(2, 3, 4, 5),
    "strided": lambda: torch.ones(4, 6, 8, 10)[::2, ::2, ::2, ::2],
    "offset": lambda: torch.ones(5, 3, 4, 5)[3:],
    "stride 0 of size 1": lambda: torch.ones(4).expand(1, 4),
    "empty": lambda: torch.ones(0, 3, 4, 5),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("given", "to"), [(F32, BF16), (F16, BF16), (BF16, F32), (F16, F32)], ids=str)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_a_cast_has_the_layout_of_to(make, given, to, grad):
    policy(**({"lower": ["abs"]} if to == BF16 else {"fp32": ["abs"]}))
    tensor = make().to(given).requires_grad_(grad)
    (reached,), _ = arrived(lambda: torch.abs(tensor))
    with hmp.disable_casts():
        expected = tensor.to(to)
    assert reached.dtype == to
    assert (reached.shape, reached.stride()) == (expected.shape, expected.stride())
    assert torch.equal(reached, expected)


@pytest.mark.parametrize(
    ("given", "to"), [(F32, BF16), (F32, F16), (F16, BF16), (BF16, F16), (BF16, F32), (F16, F32)], ids=str
)
@pytest.mark.parametrize("count", [1, 7, 64, 5000])
def test_a_cast_has_the_values_of_to(given, to, count):
    special = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 6e-8, 65504, 65520, 3.3895e38, 1 + 2**-8, 1 + 3 * 2**-9]
    )
    values = torch.cat([special, torch.randn(count) * 10.0 ** torch.randint(-30, 30, (count,))]).to(given)
    policy(**({"fp32": ["abs"]} if to == F32 else {"lower": ["abs"], "low_dtype": to}))
    (reached,), _ = arrived(lambda: torch.abs(values))
    with hmp.disable_casts():
        expected = values.to(to)
        assert torch.equal(reached.isnan(), expected.isnan())
        bits = [torch.int32 if to == F32 else torch.int16]
        assert torch.equal(reached[~reached.isnan()].view(*bits), expected[~expected.isnan()].view(*bits))
