"""``tune``: the fastest policy within an error budget."""

from __future__ import annotations

import hashlib
import inspect
import math
import numbers
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from habana_mp._compiled.rounding import uncompiled
from habana_mp._evidence.compare import check_no_conversion
from habana_mp._evidence.looking import check_nothing_runs
from habana_mp._evidence.tune.journal import Journal
from habana_mp._evidence.tune.runs import METRICS, Runs
from habana_mp._evidence.tune.search import Search
from habana_mp._evidence.tune.tuned import Tuned
from habana_mp._policy.policy import Policy
from habana_mp._report.formats import FORMATS, checked_formats
from habana_mp._show.progress import Bar
from habana_mp._show.short import brief
from habana_mp._show.units import counted, whole

CHOSEN = ("float32", "lower")  # that an op may run in, without others


def tune(
    step: Callable[[], Any],
    budget: float,
    *,
    metric: str | Callable[[Any, Any], float] = "results",
    check: Callable[[], Any] | None = None,
    start: Policy | str | os.PathLike[str] = "balanced",
    per: str = "op",
    others: str = "start",
    cost: str = "seconds",
    formats: Iterable[str] = CHOSEN,
    seed: int = 0,
    resume: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Tuned:
    """Find the fastest policy whose results stay within an error budget. The search runs a step of a model.

    One run measures how much the low dtype of each op would change the results: under ``start``, or in float32 with ``others="lower"``. Two
    more runs measure how much time it would save. This gives an order in which ops go to float32: first those whose float32 removes most
    error for its costs. Then the step runs under policies along this order, and under the first edits that ``CastReport.edits`` returns,
    which measures the error of ops together. The last runs time the best policies, float32 and the start in turns. With n ops there are at
    most n // 2 + 44 runs, n // 2 + 20 with ``cost="numbers"``, and 8 more for each of ``formats`` in 8 bits. A run of inference calls the step
    again if its first call casts weights, and up to ten times where the best policies are timed. After each run, modules, optimizers, schedulers, scalers, other tensors
    that the step has names for, and random numbers are restored.

    Args:
        step: a function without arguments that returns outputs or a loss. A step that does not call backward is inference: it runs
            without gradients, except in the run that measures errors, where frozen models have them, too. With no_grad inside the step, each
            op counts by its own error. Compiled code runs uncompiled.
        budget: the largest accepted error, above 0. With a metric that has a name it is below 1: a part of the size of the results.
        metric: the error of a run. "results": the difference of everything that the step returns, relative to its size in float32 (root
            of the sum of squares). "gradients": 1 minus the cosine between the gradients after the step and those in float32. Or a
            function of two arguments: the results in float32, and those under a policy.
        check: another step, on data that the search does not see. Its error is ``check_error`` of the result.
        start: the policy that the search edits: a ``Policy``, or its name or path. Its other lists and its low dtype stay.
        per: "op" decides for each op, "module" for each op in the modules of one path. ``set_policies`` applies names for modules.
        others: where the ops go that the search does not put into float32. "start": they keep their lists of ``start``, which gives few
            edits. "lower": to the lower list.
        cost: "seconds" measures times here. "numbers" computes as few numbers as possible in float32, which gives the same lists on every
            machine: for models that will run elsewhere.
        formats: what an op may run in: "float32" and "lower", and with them "weight_int8", "int8" or both, the lists of ops in 8 bits, for
            a step of inference. The policy that was found then also runs with edits into these lists, as many as the budget has room for.
            They need ``others="start"`` and ``cost="seconds"``.
        seed: the seed of the random numbers of each run.
        resume: a file that keeps the measurements. If it exists, the search continues from it, also with another budget.
        progress: print on stderr how many runs there will be, and a bar with the remaining time.

    Returns:
        A ``Tuned``.

    Raises:
        TypeError: ``step`` or ``check`` is no function without arguments, the metric returns no number, ``start`` is not a policy, ``formats`` no collection, or ``seed`` is not a whole number.
        ValueError: the budget is not above 0; another ``metric``, ``per``, ``others``, ``cost`` or one of ``formats``; formats in 8 bits with a step that calls
            backward; the step enters a region of autocast that is on; the step returns no numbers or
            infinite ones, or has no op that computes; the metric returns NaN for two equal results; the step differs by more than the budget in float32, too; the file to resume from
            is of another search.
        RuntimeError: a comparison, a search or a report that measures is running, or ``convert`` is in force. The step uses something
            that cannot be restored: an iterator, a queue, a lazy module before its first call.
        OSError: the file to resume from cannot be read or written.
        BaseException: what the step raises.

    Example:
        >>> found = hmp.tune(lambda: model(x), 1e-2)
        >>> policy = hmp.convert(policy=found.policy)

    See Also:
        report, compare, set_policies
    """
    _check_steps(step, check)
    seed = _checked_seed(seed)
    _check_choices(
        budget,
        metric,
        per=(per, ("op", "module")),
        others=(others, ("lower", "start")),
        cost=(cost, ("seconds", "numbers")),
    )
    in_8_bits = _checked_formats(formats, others, cost)
    check_nothing_runs("tune")
    check_no_conversion("tune")
    base = start if isinstance(start, Policy) else Policy.load(start)
    journal = Journal(
        resume,
        {"start": str(base), "per": per, "others": others, "cost": cost, "seed": seed, "metric": _name_of(metric)}
        | ({"formats": [*in_8_bits]} if in_8_bits else {}),
    )
    runs = Runs(step, check, metric, seed, journal)
    with Bar(shown=progress) as bar:
        runs.begins = bar.advance

        def announce(ops: int, parts: int, most: int) -> None:
            what = counted(ops, "op") if ops == parts else f"{counted(ops, 'op')} in {counted(parts, 'part')}"
            bar.start(f"{what}: at most {most} runs", total=most, done=runs.count)

        predicts, checks = metric == "results", check is not None
        search = Search(runs, announce, float(budget), base, per, others, cost, predicts, checks, in_8_bits)
        try:
            with uncompiled():
                return search.run()
        finally:
            runs.restore()


def _checked_formats(formats: Iterable[str], others: str, cost: str) -> tuple[str, ...]:
    """Those in 8 bits."""
    names = checked_formats(formats, (*CHOSEN, *FORMATS))
    if missing := [each for each in CHOSEN if each not in names]:
        raise ValueError(
            f"formats must have {' and '.join(map(repr, missing))}, too, not only {', '.join(map(repr, names))}"
        )
    found = tuple(each for each in names if each in FORMATS)
    for name, value, wanted in (("others", others, "start"), ("cost", cost, "seconds")):
        if found and value != wanted:
            raise ValueError(f"formats with {' and '.join(found)} need {name}={wanted!r}, not {value!r}")
    return found


def _check_steps(step: object, check: object) -> None:
    for name, each in (("step", step), ("check", check)):
        if not callable(each) and (name == "step" or each is not None):
            cure = ". Pass the function itself, not its result" if isinstance(each, torch.Tensor) else ""
            raise TypeError(f"{name} must be a function without arguments, not {brief(each)}{cure}")
        if each is not None and (needed := needed_arguments(each)):
            raise TypeError(
                f"{name} must be a function without arguments, but this one takes {needed}. Wrap it, as in lambda: model(x)"
            )


def needed_arguments(function: Callable[..., Any]) -> str:
    """The names of the arguments that a call must have."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # of one that is not written in Python
        return ""
    return ", ".join(
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    )


def _checked_seed(seed: object) -> int:
    number = whole(seed)
    if number is None:
        raise TypeError(f"seed must be a whole number, not {seed!r}")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"seed must be a number of 64 bits, not {seed}")
    return number


def _check_choices(budget: Any, metric: object, **choices: tuple[object, tuple[str, ...]]) -> None:
    if isinstance(budget, bool) or not isinstance(budget, numbers.Real) or not 0 < float(budget) < math.inf:
        below = " and below 1" if isinstance(metric, str) else ""
        raise ValueError(f"budget must be the largest accepted error, a number above 0{below}, not {budget!r}")
    if isinstance(metric, str) and float(budget) >= 1:
        raise ValueError(f"budget must be a part of the size of the results, below 1 (0.05 for 5 %), not {budget!r}")
    if not callable(metric) and metric not in [*METRICS]:
        raise ValueError(f'metric must be "results", "gradients" or a function of two results, not {metric!r}')
    for name, (each, accepted) in choices.items():
        if each not in accepted:
            raise ValueError(f"{name} must be {' or '.join(map(repr, accepted))}, not {each!r}")


def _name_of(metric: object) -> str:
    """Two functions of one name, as all lambdas, differ in their code."""
    if isinstance(metric, str):
        return metric
    name: str = getattr(metric, "__qualname__", type(metric).__qualname__)
    code = getattr(metric, "__code__", None)
    if code is None:
        return name
    constants = repr((code.co_consts, code.co_names)).encode()
    return f"{name} {hashlib.sha256(code.co_code + constants).hexdigest()[:16]}"
