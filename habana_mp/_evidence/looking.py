"""What ``compare``, ``record`` and ``tune`` share about a step whose numbers are looked at."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._autocast.context import autocast
from habana_mp._compiled.rounding import uncompiled
from habana_mp._report.cast_report import CastReport
from habana_mp._show.short import brief
from habana_mp._torch_private import DRAW

_PROBABILITIES = "log_probabilities"
_in_no_autocast: list[str] = []  # what runs a step there, which no probe looks at


def check_nothing_runs(name: str) -> None:
    """What looks at the numbers of calls does so one at a time; set_probe in src/watch has the same words, too late for what is put back."""
    if running := _core.probe_name() or "".join(_in_no_autocast):
        why = "is already running. Only one step can be recorded at a time"
        raise RuntimeError(f"{name} {why if running == name else f'cannot run inside {running}'}")


@contextmanager
def no_autocast(step: str, name: str) -> Iterator[None]:
    """``step`` of ``name`` runs. Raises ValueError at the end if the step has entered a region of autocast on this thread that is on: its casts come in place of those that
    the step is to run under. To be entered where none is on.
    """
    thread, entered = threading.get_ident(), []

    def noting(kind: str, enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(region: Any) -> Any:
            result = functools.partial(enter, region)()  # C may run in its place, as in a with statement
            if threading.get_ident() == thread and any(map(torch.is_autocast_enabled, devices())):
                entered.append(kind)
            return result

        return noted

    with ExitStack() as stack:
        for kind, region in ((torch.autocast, "torch.autocast"), (autocast, "hmp.autocast")):
            stack.callback(setattr, kind, "__enter__", kind.__enter__)
            kind.__enter__ = noting(region, kind.__enter__)  # type: ignore[method-assign]
        _in_no_autocast.append(name)
        stack.callback(_in_no_autocast.clear)
        yield
    if entered:
        raise ValueError(
            f"the {step} enters {entered[0]}, in itself or in a module, whose casts come in place of those of the policies that the {step} is to"
            " run under. Leave it out, or switch it off with enabled=False"
        )


def devices() -> list[str]:
    """The types of those that there are."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu", *([accelerator.type] if accelerator is not None else [])]


@contextmanager
def looking(start: Callable[[], _core.ProbeSession]) -> Iterator[None]:
    """From ``start`` on, what this thread calls is recorded op by op."""
    with uncompiled(), CastReport(own_thread=True):
        session = start()  # what it begins ends with it, also where an interrupt takes the way round the rest
        try:
            yield
        finally:
            session.end()


def numbers_of(returned: Any) -> list[torch.Tensor]:
    """The tensors and numbers in what a step returns, in the order of their paths."""
    leaves, _ = DRAW.leaves(returned)
    found = []
    for _, leaf in sorted(leaves, key=lambda each: DRAW.path_text(each[0])):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, (int, float)):
            found.append(torch.tensor(leaf, dtype=torch.float64, device="cpu"))
    return found


def log_probabilities_of(returned: Any) -> torch.Tensor | None:
    """What a step returns as ``{"log_probabilities": ...}``: a natural logarithm for each token."""
    found = returned.get(_PROBABILITIES) if isinstance(returned, Mapping) else None
    if found is None:
        return None
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        raise TypeError(f"{_PROBABILITIES} must be a floating tensor with a number for each token, not {brief(found)}")
    return found
