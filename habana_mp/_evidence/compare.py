"""``compare``: a step under two policies, or two steps under one, and where their numbers differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._autocast.context import autocast
from habana_mp._autocast.models_called import on_models_called
from habana_mp._compiled.rounding import uncompiled
from habana_mp._evidence.comparison import Comparison
from habana_mp._evidence.kept_state import KeptState
from habana_mp._evidence.two_runs import TwoRuns
from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.policy import Policy
from habana_mp._report.cast_report import CastReport
from habana_mp._report.projections import project
from habana_mp._scope import in_force
from habana_mp._scope.disable_casts import disable_casts
from habana_mp._torch_private import DRAW

_PROJECTIONS = 8
_Named = Policy | str | os.PathLike[str]


def compare(
    step: Callable[[], Any], a: _Named | Callable[[], Any] | None = None, b: _Named | None = None
) -> Comparison:
    """Run a step under two policies and show where the numbers differ; or run two steps and check that they give the same bits.

    The calls of the two runs are paired by module, op and order, and their results are compared. If they differ, the op runs once more, on
    the inputs of run b and in the dtypes of run a. This separates the difference that the op makes from the one that it passes on. With a
    backward pass in the step, the comparison shows which op changes the loss. Each step runs once. After each run, modules, optimizers,
    schedulers, scalers, other tensors that the step has names for, and random numbers are restored.

    Args:
        step: a function without arguments. Return the values to compare at the end, such as logits.
        a: the policy of the first run: a ``Policy``, its name or path, or None for plain PyTorch without casts. Or a second step: then
            both steps run under the policy in force.
        b: the policy of the second run, or None.

    Raises:
        TypeError: ``step`` is not callable, or a policy has a wrong type.
        ValueError: there is no such policy.
        RuntimeError: another comparison or search is running, a report measures values, or a conversion is in force and policies are
            given. The step uses something that cannot be restored: an iterator, a queue, a lazy module before its first call.
        BaseException: what the steps raise.

    Example:
        >>> found = hmp.compare(lambda: model(x), None, "hmp")
        >>> found.same
        False

    See Also:
        report, find_nonfinite, set_policies
    """
    if not callable(step):
        raise TypeError(f"step must be a function without arguments, not {step!r}")
    if callable(a) and not isinstance(a, Policy):
        if b is not None:
            raise TypeError("compare runs two steps under the policy in force, so a policy cannot be given as well")
        return _compared((step, a), (_name_of(step), _name_of(a)), (ExitStack(), ExitStack()))
    check_no_conversion("compare")
    policies = [_policy(each) for each in (a, b)]
    names = ["no casts" if policy is None else policy.name for policy in policies]
    return _compared((step, step), (names[0], names[1]), (under(policies[0]), under(policies[1])), diff_of(*policies))


def diff_of(a: Policy | None, b: Policy | None) -> PolicyDiff | None:
    """What two policies decide otherwise, if there are two."""
    return None if a is None or b is None else PolicyDiff.between(a, b) or None


def recorded(run: Callable[[], Any]) -> Any:
    """The numbers of a run, for ``compared_with``; they may be pickled."""
    return _run(run, _core.start_recording, _core.stop_recording)


def compared_with(first: Any, run: Callable[[], Any], *, other_process: bool = False) -> TwoRuns:
    """A run beside a recorded one, of this process or another one."""
    notes: list[str] = []

    def stop(returned: list[torch.Tensor]) -> Any:
        if returned and not _core.compares_backward():
            notes.extend(_projected(returned))
        return _core.stop_comparing(returned)

    return TwoRuns(_run(run, lambda: _core.start_comparing(first), stop), notes, other_process=other_process)


def _projected(returned: list[torch.Tensor]) -> Iterator[str]:
    """Outputs without a loss get random sums in place of one. Where their graph cannot be run backward, that is said."""
    try:
        project(returned, _PROJECTIONS, 0, _begin, _end)
    except Exception as error:  # noqa: BLE001 - of whatever the user's backward does
        yield f"No shares: the backward pass of the outputs raised {type(error).__name__}: {error}".splitlines()[0]


def _begin() -> None:
    _core.begin_compared_projection()
    _core.begin_projection()


def _end() -> None:
    _core.end_projection()
    _core.end_compared_projection()


def _compared(
    steps: tuple[Any, Any], names: tuple[str, str], contexts: tuple[Any, Any], policy_diff: PolicyDiff | None = None
) -> Comparison:
    # Before anything is noted: what is noted is put back.
    check_nothing_runs("compare")
    kept = KeptState(*steps)
    with kept.watching():
        try:
            with contexts[0]:
                first = recorded(steps[0])
            kept.restore()
            with contexts[1]:
                runs = compared_with(first, steps[1])
        finally:
            kept.restore()
    return runs.comparison(names, policy_diff)


def _run(step: Callable[[], Any], start: Callable[[], Any], stop: Callable[[list[torch.Tensor]], Any]) -> Any:
    with uncompiled(), CastReport(own_thread=True):
        session = start()  # what it begins ends with it, also where an interrupt takes the way round the rest
        try:
            return stop(numbers_of(step()))
        finally:
            session.end()


def check_nothing_runs(name: str) -> None:
    """What looks at the numbers of calls does so one at a time; set_probe in src/watch has the same words, too late for what is put back."""
    if running := _core.probe_name():
        why = "is already running. Only one step can be recorded at a time"
        raise RuntimeError(f"{name} {why if running == name else f'cannot run inside {running}'}")


def check_no_conversion(name: str) -> None:
    """Its casts would come before those of the policies that the step is to run under."""
    if in_force.policy is not None:
        raise RuntimeError(
            f"{name} runs the step under its own policies, but a conversion is in force. Call hmp.revert() first"
        )


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


def _policy(named: object) -> Policy | None:
    if named is None or isinstance(named, Policy):
        return named
    if isinstance(named, (str, os.PathLike)):
        return Policy.load(named)
    raise TypeError(f"a policy must be a Policy, the name of a preset, the path of a folder or None, not {named!r}")


@contextmanager
def under(policy: Policy | None) -> Iterator[None]:
    """A policy for the tensors of all devices that there are, or no casts."""
    with ExitStack() as stack:
        for device in _devices():  # torch's own round it does not count
            stack.enter_context(torch.autocast(device, enabled=False))
        if policy is None:
            stack.enter_context(disable_casts())
        else:
            stack.enter_context(on_models_called(policy, own_thread=True))
            for device in _devices():
                stack.enter_context(autocast(device, policy=policy))
        yield


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu", *([accelerator.type] if accelerator is not None else [])]


def _name_of(step: object) -> str:
    return getattr(step, "__qualname__", None) or repr(step)
