"""Two steps that differ in one planted place, and what ``hmp.compare`` is to name: the tests and the benchmark take them from here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from habana_mp import hmp
from habana_mp._show.module_path import ModulePath

WIDTH, HEADS, TOKENS = 32, 4, 12


class Block(nn.Module):
    """A block of a transformer, whose parts may be replaced by name."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.scale = (WIDTH // HEADS) ** -0.5
        self.parts: dict[str, Callable[..., torch.Tensor]] = {}

    def part(self, name: str, default: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        return self.parts.get(name, default)(*inputs)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        heads = [one(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v)]
        y = self.part("attention", self.attention, *heads, mask)
        y = self.part("attended", lambda y: y, y)
        x = self.part("residual", torch.add, x, self.drop(self.out(y.transpose(1, 2).flatten(-2))))
        y = self.part("activation", functional.gelu, self.up(self.norm2(x)))
        return self.part("residual2", torch.add, x, self.down(y))

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(q * self.scale, k.transpose(-1, -2)) + mask
        return torch.matmul(torch.softmax(scores, -1), v)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.batch = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.batch(x.transpose(1, 2)).mean(-1))


class _Scaled(torch.autograd.Function):
    """The same forward, another backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradients[0] * 1.01


@dataclass(frozen=True)
class Planted:
    """What is changed in a copy of the net, and the ops that may be named for it, in which module."""

    change: Callable[[Net], object]
    ops: tuple[str, ...]
    module: str
    phase: str = "forward"


def _weight(path: str, value: float = 1.001) -> Callable[[Net], object]:
    def change(net: Net) -> None:
        with torch.no_grad():
            net.get_parameter(path).mul_(value).add_(1e-4)

    return change


def _set(path: str, name: str, value: Any) -> Callable[[Net], object]:
    return lambda net: setattr(net.get_submodule(path), name, value)


def _part(block: int, name: str, function: Callable[..., torch.Tensor]) -> Callable[[Net], object]:
    return lambda net: net.blocks[block].parts.update({name: function})  # type: ignore[union-attr,operator]


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, mask)


def _wide_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q * (WIDTH // HEADS) ** -0.5, k.transpose(-1, -2)) + mask
    return torch.matmul(torch.softmax(scores, -1, dtype=torch.float64).float(), v)


def _late_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * ((WIDTH // HEADS) ** -0.5 + 1e-4) + mask
    return torch.matmul(torch.softmax(scores, -1), v)


def _written_to(y: torch.Tensor) -> torch.Tensor:
    """By numpy, which torch does not see."""
    y.detach().numpy()[0] += 0.01
    return y


def _hooked(y: torch.Tensor) -> torch.Tensor:
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient + 1e-3)
    return y


STEPS: dict[str, Planted] = {
    "weight of the first linear": Planted(_weight("first.weight"), ("linear",), "first"),
    "weight of a projection": Planted(_weight("blocks.1.k.weight"), ("linear",), "blocks.1.k"),
    "bias of a projection": Planted(_weight("blocks.0.out.bias"), ("linear",), "blocks.0.out"),
    "weight of a norm": Planted(_weight("blocks.1.norm.weight"), ("layer_norm",), "blocks.1.norm"),
    "bias of the head": Planted(_weight("head.bias"), ("linear",), "head"),
    "eps of a norm": Planted(_set("blocks.0.norm2", "eps", 1e-3), ("layer_norm",), "blocks.0.norm2"),
    "scale of attention": Planted(_set("blocks.1", "scale", 0.36), ("mul",), "blocks.1"),
    "dropout in one of them": Planted(_set("blocks.1.drop", "training", True), ("dropout",), "blocks.1.drop"),
    "batch norm that trains": Planted(_set("batch", "training", True), ("add_", "batch_norm"), "batch"),
    "eps of a batch norm": Planted(_set("batch", "eps", 1e-4), ("batch_norm",), "batch"),
    "constant added": Planted(_part(0, "attended", lambda y: y + 1e-3), ("add",), "blocks.0"),
    "constant multiplied": Planted(_part(1, "attended", lambda y: y * 1.001), ("mul",), "blocks.1"),
    "clamped": Planted(_part(1, "attended", lambda y: y.clamp(max=0.1)), ("clamp",), "blocks.1"),
    "cast there and back": Planted(_part(0, "attended", lambda y: y.bfloat16().float()), ("to",), "blocks.0"),
    "rounded": Planted(_part(0, "attended", lambda y: torch.round(y, decimals=2)), ("round",), "blocks.0"),
    "residual left out": Planted(_part(1, "residual2", lambda _, y: y), ("add", "batch_norm"), "blocks.1"),
    "residual scaled": Planted(_part(0, "residual", lambda x, y: torch.add(x, y, alpha=1.01)), ("add",), "blocks.0"),
    "residual subtracted": Planted(_part(0, "residual2", torch.sub), ("sub",), "blocks.0"),
    "activation left out": Planted(_part(1, "activation", lambda y: y), ("gelu",), "blocks.1"),
    "activation of tanh": Planted(
        _part(0, "activation", lambda y: functional.gelu(y, approximate="tanh")), ("gelu",), "blocks.0"
    ),
    "another activation": Planted(_part(0, "activation", functional.silu), ("silu",), "blocks.0"),
    "fused attention": Planted(_part(1, "attention", _sdpa), ("scaled_dot_product_attention",), "blocks.1"),
    "softmax in float64": Planted(_part(0, "attention", _wide_softmax), ("softmax",), "blocks.0"),
    "scaled after the product": Planted(_part(1, "attention", _late_scale), ("mul", "matmul"), "blocks.1"),
    "another backward": Planted(_part(1, "attended", _Scaled.apply), ("mul",), "-", "backward"),
    "a hook of a gradient": Planted(_part(0, "attended", _hooked), ("add",), "-", "backward"),
    "written to past torch": Planted(_part(0, "attended", _written_to), ("flatten",), "blocks.0"),
}
# Lowered in all modules: the first place is named.
LOWERED: dict[str, tuple[str, str]] = {
    "linear": ("linear", "first"),
    "layer_norm": ("layer_norm", "blocks.0.norm"),
    "matmul": ("matmul", "blocks.0"),
    "softmax": ("softmax", "blocks.0"),
    "gelu": ("gelu", "blocks.0"),
    "batch_norm": ("batch_norm", "batch"),
    "mean": ("mean", ""),
    "cross_entropy": ("cross_entropy_loss", "-"),
}


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)
    return torch.randn(6, TOKENS, 8, generator=made), mask, torch.randint(0, 5, (6,), generator=made)


def step_of(net: Net) -> Callable[[], torch.Tensor]:
    x, mask, target = inputs()

    def step() -> torch.Tensor:
        logits: torch.Tensor = net(x, mask)
        functional.cross_entropy(logits.float(), target).backward()
        return logits

    return step


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def compared(planted: Planted) -> hmp.Comparison:
    plain = net()
    changed = copy.deepcopy(plain)
    planted.change(changed)
    return hmp.compare(step_of(plain), step_of(changed))


def compared_lower(op: str) -> hmp.Comparison:
    return hmp.compare(step_of(net()), None, hmp.Policy.from_ops(lower=[op], name="low"))


def is_named(found: hmp.Comparison, ops: tuple[str, ...], module: str, phase: str = "forward") -> bool:
    """Whether the first difference is where it was planted: "-" stands for outside of modules."""
    if found.first is None:
        return False
    path = ModulePath.of(found.first.module).path if module != "-" else found.first.module
    names = (found.first.op, found.first.inner.removeprefix("aten::"))
    return any(op in names for op in ops) and path == module.strip("-") and found.first.phase == phase
