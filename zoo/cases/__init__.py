"""The cases: each op of torch's table of ops, each module of its table of modules, each architecture of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

# Layers run under the instruments alone; an architecture that is compiled runs in inference and in training.
Kind = Literal["op", "module", "layer", "architecture", "inference", "training"]


class Outcome(NamedTuple):
    """What became of one call: its dtypes, or its error and where it was raised."""

    # "changed", "raised" and "grew" are what an instrument does to a call that runs without it.
    where: Literal["ran", "forward", "backward", "process", "changed", "raised", "grew"]
    text: str


class Difference(NamedTuple):
    """How far the results of a call are from those of the same call, run in another way."""

    of: str
    # Relative, by the norms; none where the sizes differ.
    error: float | None
    # Of the numbers: how many are others.
    share: float


@dataclass(frozen=True)
class Run:
    """What became of all calls of a case under one variant."""

    front: str
    policy: str
    # "float32", or "mixed" where activations are bfloat16 and weights float32.
    inputs: str
    outcomes: list[Outcome]
    # Of an architecture that ran: relative errors against float32, and what convert changes of its parameters when it is made.
    output_error: float | None = None
    gradient_error: float | None = None
    parameters: str = ""
    # Of compiled code to uncompiled code.
    differences: list[Difference] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    kind: Kind
    name: str
    # Gives one run after the other. ``skip`` holds the variants (front, policy) that ended the process before.
    runs: Callable[[frozenset[tuple[str, str]]], Iterator[Run | Began]]
    # How many times longer than others it may take.
    patience: int = 1

    @property
    def label(self) -> str:
        return f"{self.kind}/{self.name}"


class Began(NamedTuple):
    """Sent before a variant, so that it is known which one ended the process."""

    front: str
    policy: str


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def all_cases() -> list[Case]:
    from zoo.cases import architectures, modules, ops

    return [*ops.cases(), *modules.cases(), *architectures.cases()]


def dtypes_of(value: Any) -> str:
    """The dtypes of a result as text, with its nesting."""
    import torch

    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(dtypes_of, value))
        return f"({inner})" if len(value) != 1 else inner
    return type(value).__name__
