"""``compare`` and ``assert_same``: two runs, of which each runs here or has been recorded in a file, and where their numbers differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch

import habana_mp._core as _core
from habana_mp._autocast.context import autocast
from habana_mp._autocast.models_called import on_models_called
from habana_mp._evidence.comparison import Comparison
from habana_mp._evidence.kept_state import KeptState
from habana_mp._evidence.looking import check_nothing_runs, devices, log_probabilities_of, looking, numbers_of
from habana_mp._evidence.recordings.about import about, environment_diff, policy_here, recorded_policy
from habana_mp._evidence.recordings.file import SUFFIX, Kept, is_recording, load
from habana_mp._evidence.recordings.record import kept_log_probabilities
from habana_mp._evidence.recordings.terms import Terms
from habana_mp._evidence.two_runs import TwoRuns
from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.policy import Policy
from habana_mp._report.projections import project
from habana_mp._scope import in_force
from habana_mp._scope.without_casts import CastsSwitched
from habana_mp._show.short import brief

_PROJECTIONS = 8
_Found = TypeVar("_Found")
_Path = str | os.PathLike[str]
_Named = Policy | _Path


def compare(
    step: Callable[[], Any] | _Path,
    a: _Named | Callable[[], Any] | None = None,
    b: _Named | None = None,
    *,
    modules: Mapping[str, str] | None = None,
    rtol: float = 0.0,
) -> Comparison:
    """Run a step under two policies and show where the numbers differ; or compare two steps, a step and a recording, or two recordings.

    The calls of the two runs are paired by module, op and order, and their results are compared. If they differ, the op runs once more, on
    the inputs of run b and in the dtypes of run a. This separates the difference that the op makes from the one that it passes on. With a
    backward pass in the step, the comparison shows which op changes the loss. Without one, eight backward passes of random sums of the
    outputs that the step returns take its place, and run its hooks. A step runs once in each run. After each run, modules, optimizers,
    schedulers, scalers, other tensors that the step has names for, and random numbers are restored.

    Args:
        step: a function without arguments. Return the values to compare at the end, such as logits. Or the path of a recording, which
            ``record`` wrote and whose name ends in ``.rec``: run a. Nothing runs then, so no op runs once more and there are no shares.
        a: the policy of the first run: a ``Policy``, its name or path, or None for plain PyTorch without casts. Or a second step: then
            both steps run under the policy in force. Or the path of a recording, which is run a: the step runs under the policy in
            force. Beside a recording as ``step``: the path of another one, which is run b.
        b: the policy of the second run, or None.
        modules: names of modules in run a, and those that run b has for them: ``{"blocks": "model.layers"}``. A name is a path below
            the outermost module, with all that is inside of it. ``*`` matches one name: ``{"h.*.attn": "layers.*.attention"}``.
        rtol: relative tolerance, 0 or more. A call counts as the same if its results differ by at most ``rtol``, relative to their size
            (root of the summed squares). So do losses, gradients and results.

    Raises:
        TypeError: ``step`` is not callable and no path, a policy has a wrong type or is given beside a second step or a recording, or
            ``modules`` is no mapping of paths.
        ValueError: there is no such policy; two names in ``modules`` have different numbers of ``*``; ``rtol`` is negative or no number; a file is no recording, or is damaged.
        OSError: a recording cannot be read.
        RuntimeError: another comparison or search is running, a report measures values, or a conversion is in force and policies are
            given. The step uses something that cannot be restored: an iterator, a queue, a lazy module before its first call.
        BaseException: what the steps raise.

    Example:
        >>> found = hmp.compare(lambda: model(x), None, "hmp")
        >>> found.same
        False

    See Also:
        record, assert_same, report, find_nonfinite, set_policies
    """
    terms = Terms.of(modules, rtol)
    if is_recording(step):
        if not is_recording(a) or b is not None:
            raise TypeError(
                f"beside a recording, compare takes the path of a second one, which ends in {SUFFIX}, not {brief(a)}"
            )
        return _files(load(step), load(a), terms)
    if not callable(step):
        raise TypeError(f"step must be a function without arguments or a recording, not {brief(step)}")
    if is_recording(a):
        if b is not None:
            raise TypeError(
                "compare runs a step beside a recording under the policy in force, so a policy cannot be given as well"
            )
        return _beside(load(a), step, terms)
    if callable(a) and not isinstance(a, Policy):
        if b is not None:
            raise TypeError("compare runs two steps under the policy in force, so a policy cannot be given as well")
        return _compared((step, a), (_name_of(step), _name_of(a)), (ExitStack(), ExitStack()), terms)
    check_no_conversion("compare")
    policies = [_policy(each) for each in (a, b)]
    names = ["no casts" if policy is None else policy.name for policy in policies]
    diff = diff_of(*policies)
    return _compared((step, step), (names[0], names[1]), (under(policies[0]), under(policies[1])), terms, diff)


def assert_same(
    recording: _Path, step: Callable[[], Any], *, modules: Mapping[str, str] | None = None, rtol: float = 0.0
) -> None:
    """Raise if a step has other numbers than a recording. For tests: a recording in the repository is the reference.

    Args:
        recording: the path of the reference, which ``record`` wrote.
        step: a function without arguments, which runs under the policy in force. It returns what was given to ``returns``, if anything.
        modules: as in ``compare``.
        rtol: as in ``compare``. Other machines and versions of torch round otherwise: 1e-5 is usual for float32, 1e-2 for bfloat16.

    Raises:
        AssertionError: the numbers differ. The message names the first op that does.
        TypeError, ValueError, OSError, RuntimeError, BaseException: as in ``compare``.

    Example:
        >>> model = model.eval()  # dropout would draw other numbers
        >>> with hmp.record("reference.rec") as run:
        ...     run.returns(model(x))
        >>> hmp.assert_same("reference.rec", lambda: model(x), rtol=1e-5)

    See Also:
        record, compare
    """
    if not is_recording(recording):
        raise ValueError(f"{recording!r}: the name of a recording ends in {SUFFIX}")
    if not callable(step):
        raise TypeError(f"step must be a function without arguments, not {brief(step)}")
    compare(step, recording, modules=modules, rtol=rtol).assert_same()


def diff_of(a: Policy | None, b: Policy | None) -> PolicyDiff | None:
    """What two policies decide otherwise, if there are two."""
    return None if a is None or b is None else PolicyDiff.between(a, b) or None


def recorded(run: Callable[[], Any]) -> Kept:
    """The numbers of a run, for ``compared_with``."""
    with looking(lambda: _core.start_recording(by_compare=True)):
        returned = run()
        found = _core.stop_recording(numbers_of(returned))
    return Kept(_ran(found), kept_log_probabilities(returned))


def compared_with(first: Kept, run: Callable[[], Any], terms: Terms) -> TwoRuns:
    """A run beside a recorded one, of this process or another one."""
    notes: list[str] = []
    with looking(lambda: _core.start_comparing(first.run, terms.names_in(first.run), terms.rtol)):
        returned = run()
        numbers = numbers_of(returned)
        own = log_probabilities_of(returned)
        if numbers and not _core.compares_backward():
            notes.extend(_projected(numbers if own is None else [own]))
        found = _core.stop_comparing(numbers)
    return TwoRuns(_ran(found), terms, (first, kept_log_probabilities(returned)), notes)


def _ran(found: _Found | None) -> _Found:
    if found is None:
        raise RuntimeError("the step has ended what looks at it")
    return found


def _files(first: Kept, second: Kept, terms: Terms) -> Comparison:
    found = _core.compared(first.run, second.run, terms.names_in(first.run), terms.rtol)
    runs = TwoRuns(found, terms, (first, second.log_probabilities), both_files=True)
    policies = recorded_policy(first.about), recorded_policy(second.about)
    return runs.comparison((first.file, second.file), diff_of(*policies), environment_diff(first.about, second.about))


def _beside(first: Kept, step: Callable[[], Any], terms: Terms) -> Comparison:
    check_nothing_runs("compare")
    kept = KeptState(step)
    with kept.watching():
        try:
            runs = compared_with(first, step, terms)
        finally:
            kept.restore()
    return beside(runs, first, (first.file, _name_of(step)))


def beside(runs: TwoRuns, first: Kept, names: tuple[str, str]) -> Comparison:
    """Of a recording and a run that has just ended, under the policy in force."""
    policy = policy_here()
    diff = diff_of(recorded_policy(first.about), policy)
    return runs.comparison(names, diff, environment_diff(first.about, about(policy)))


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
    steps: tuple[Any, Any],
    names: tuple[str, str],
    contexts: tuple[Any, Any],
    terms: Terms,
    policy_diff: PolicyDiff | None = None,
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
                runs = compared_with(first, steps[1], terms)
        finally:
            kept.restore()
    return runs.comparison(names, policy_diff)


def check_no_conversion(name: str) -> None:
    """Its casts would come before those of the policies that the step is to run under."""
    if in_force.policy is not None:
        raise RuntimeError(
            f"{name} runs the step under its own policies, but a conversion is in force. Call hmp.revert() first"
        )


def _policy(named: object) -> Policy | None:
    if named is None or isinstance(named, Policy):
        return named
    if isinstance(named, (str, os.PathLike)):
        return Policy.load(named)
    raise TypeError(
        f"a policy must be a Policy, the name of a preset, the path of a folder or None, not {brief(named)}"
    )


@contextmanager
def under(policy: Policy | None) -> Iterator[None]:
    """A policy for the tensors of all devices that there are, or no casts."""
    with ExitStack() as stack:
        for device in devices():  # torch's own round it does not count
            stack.enter_context(torch.autocast(device, enabled=False))
        if policy is None:
            with CastsSwitched(True):  # the end of disable_casts would end the copies of weights, too
                yield
            return
        stack.enter_context(on_models_called(policy, own_thread=True))
        for device in devices():
            stack.enter_context(autocast(device, policy=policy))
        yield


def _name_of(step: object) -> str:
    return getattr(step, "__qualname__", None) or repr(step)
