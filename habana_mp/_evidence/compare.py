"""``compare``: a step under two policies, or two steps under one, and where their numbers differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._autocast.context import autocast
from habana_mp._evidence.comparison import Comparison
from habana_mp._evidence.kept_state import KeptState
from habana_mp._evidence.two_runs import TwoRuns
from habana_mp._policy.environment import load_kept
from habana_mp._policy.policy import Policy
from habana_mp._report.cast_report import CastReport
from habana_mp._report.projections import project
from habana_mp._scope.disable_casts import disable_casts
from habana_mp._torch_private import DRAW

_PROJECTIONS = 8
_Named = Policy | str | os.PathLike[str]


def compare(
    step: Callable[[], Any], a: _Named | Callable[[], Any] | None = None, b: _Named | None = None
) -> Comparison:
    """Run a step under two policies and say where the numbers differ; or run two steps and prove that they give the same bits.

    Calls of the two runs are paired by module, op and order. Of each pair the results are compared, and where they differ the op is run once more,
    from what run b gave it and as run a ran it: so what an op makes itself is told from what it passes on. A backward pass
    in the step says which op changes the loss. Each step runs once. Weights, buffers, gradients, optimizers and random
    numbers are put back after each run.

    Args:
        step: what to run: a function without arguments. Return what is to be compared at the end too, such as logits.
        a: the policy of the first run, or None for plain PyTorch, without casts. Or another step: then both run under what is in force.
        b: the policy of the second run, or None.

    Raises:
        TypeError: ``step`` is not callable, or a policy is none.
        ValueError: a policy has no such name.
        RuntimeError: another comparison or search is running, or a report measures values.
        BaseException: what the steps raise.

    >>> found = hmp.compare(lambda: model(x), None, "hmp")
    >>> found.same
    False

    See Also:
        report, find_nonfinite, set_policies
    """
    if not callable(step):
        raise TypeError(f"compare runs a step, a function without arguments, not {step!r}")
    if callable(a) and not isinstance(a, Policy):
        if b is not None:
            raise TypeError("two steps run under what is in force, so compare takes no policy beside them")
        return _compared((step, a), (_name_of(step), _name_of(a)), (ExitStack(), ExitStack()))
    policies = [_policy(each) for each in (a, b)]
    names = ["no casts" if policy is None else policy.name for policy in policies]
    return _compared((step, step), (names[0], names[1]), (_under(policies[0]), _under(policies[1])))


def recorded(run: Callable[[], Any]) -> Any:
    """The numbers of a run, for ``compared_with``; they may be pickled."""
    return _run(run, _core.start_recording, _core.stop_recording)


def compared_with(first: Any, run: Callable[[], Any]) -> TwoRuns:
    """A run beside a recorded one."""
    return TwoRuns(_run(run, lambda: _core.start_comparing(first), _stop_comparing))


def _compared(steps: tuple[Any, Any], names: tuple[str, str], contexts: tuple[Any, Any]) -> Comparison:
    kept = KeptState()
    with kept.watching():
        try:
            with contexts[0]:
                first = recorded(steps[0])
            kept.restore()
            with contexts[1]:
                runs = compared_with(first, steps[1])
        finally:
            kept.restore()
    return runs.comparison(names)


def _stop_comparing(returned: list[torch.Tensor]) -> Any:
    """Outputs without a loss get random sums in place of one."""
    try:
        if not _core.compares_losses():
            project(returned, _PROJECTIONS, 0, _core.begin_compared_projection, _core.end_compared_projection)
    except BaseException:
        _core.stop_comparing([])
        raise
    return _core.stop_comparing(returned)


def _run(step: Callable[[], Any], start: Callable[[], None], stop: Callable[[list[torch.Tensor]], Any]) -> Any:
    with CastReport():
        returned: list[torch.Tensor] = []
        start()
        try:
            DRAW.map_tensors(torch.Tensor, returned.append, step())
        except BaseException:
            stop([])
            raise
        return stop(returned)


def _policy(named: object) -> Policy | None:
    if named is None or isinstance(named, Policy):
        return named
    if isinstance(named, (str, os.PathLike)):
        return load_kept(named)
    raise TypeError(f"a policy is a Policy, the name of a preset, the path of a folder or None, not {named!r}")


@contextmanager
def _under(policy: Policy | None) -> Iterator[None]:
    """A policy for the tensors of all devices that there are, or no casts."""
    with ExitStack() as stack:
        if policy is None:
            stack.enter_context(disable_casts())
        else:
            for device in _devices():
                stack.enter_context(autocast(device, policy=policy))
        yield


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu", *([accelerator.type] if accelerator is not None else [])]


def _name_of(step: object) -> str:
    return getattr(step, "__qualname__", None) or repr(step)
