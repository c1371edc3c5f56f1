"""The search: which parts stay in float32, found by runs whose number is known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec import structs

import habana_mp._core as _core
from habana_mp._autocast.module_lines import lines_of
from habana_mp._evidence.tune.choice import policy_of
from habana_mp._evidence.tune.costs import Costs, seconds_of_casts
from habana_mp._evidence.tune.parts import Parts, edits_in_formats
from habana_mp._evidence.tune.path import free, path
from habana_mp._evidence.tune.runs import Runs
from habana_mp._evidence.tune.tuned import Tuned, TunedPart
from habana_mp._evidence.tune.turns import Point, fastest, timed_in_turns
from habana_mp._policy.policy import Policy
from habana_mp._report.data import Report
from habana_mp._report.edits.edits import Edit, edits
from habana_mp._report.formats import FORMATS
from habana_mp._show.units import apart, counted

_ROUNDS = 3  # at least, in which the policies are timed, one after another
_TIMED = 8  # policies, at most
_EDITS = (1, 2, 3, 5)  # the first edits of a report, which run together
_CHANCE = 10.0  # errors of a loss may cancel
_RUNS = {"numbers": 20, "seconds": 44}  # beside one for two ops
_RUNS_IN_FORMATS = 8  # and these for each list of ops in 8 bits: a run halves the edits that are left


@dataclass
class Search:
    """``announce`` is called once, with how many ops and parts are searched and how many runs there will be at most.

    ``predicts``: errors of parts are in the unit of the budget. ``checks``: one run is left for another step. What is between them are
    arguments of ``tune``.
    """

    _runs: Runs
    _announce: Callable[[int, int, int], None]
    _budget: float
    _base: Policy
    _per: str
    _others: str
    _cost: str
    _predicts: bool
    _checks: bool
    _formats: tuple[str, ...]

    def __post_init__(self) -> None:
        self._in_seconds = self._cost == "seconds"
        self._reserved = self._checks + (_ROUNDS * _TIMED if self._in_seconds else 0)
        self._points: list[Point] = []
        self._edits: list[Edit] = []
        self._in_formats: list[Edit] = []  # each op in the list that is best for it, then in each of them
        self._most_in_formats: list[Policy] = []
        self._runs_in_formats = _RUNS_IN_FORMATS * len(self._formats)

    def run(self) -> Tuned:
        size = self._runs.reference()
        wide = Policy.from_ops(rest="fp32", low_dtype=self._base.low_dtype, name="float32")
        as_start = self._others == "start"
        measured, backward = self._runs.report(self._base if as_start else wide, values=True, formats=self._formats)
        # Its edits are candidates that are run, so that compiled code beside them leaves them what they are.
        measured = structs.replace(measured, compiled=[])
        if self._formats and backward:
            raise ValueError(
                f"{' and '.join(self._formats)} are for inference, and the step calls backward: return its outputs, or leave these formats out"
            )
        self._parts = parts = Parts(measured, self._per, size, self._base, as_it_ran=as_start)
        if not parts:
            where = f"in {self._base._core.low_dtype} under {self._base.name}" if as_start else "in float32"
            raise ValueError(
                f"no op of the step computes {where}, so there is nothing to tune. tune does not see ops inside torch.compile or in other threads"
            )
        if not as_start:
            _check_float32(measured)
        self._runs.is_inference = not backward
        in_8_bits = self._formats or any(entry.list in FORMATS for entry in self._base._core.entries)
        self._may_try_8_bits = as_start and self._in_seconds and not (backward or in_8_bits)
        comparable = parts.unit == "results" or (parts.unit == "loss" and self._runs.numbers == 1)
        self._predicts &= comparable
        # What the other lists of the start still lower is a part too, such as dropout that passes its input on.
        all_wide, _ = self._runs.report(self._policy(range(len(parts))), values=False)
        parts.add_lowered(all_wide, self._base._core.low_dtype)
        self._most = parts.ops // 2 + _RUNS[self._cost] + self._runs_in_formats
        self._reserved += self._runs_in_formats
        self._announce(parts.ops, len(parts), self._most)
        low = self._policy(())
        all_low = self._runs.run(low)
        self._fit_errors(all_low.error)
        numbers = [float(part.numbers) for part in parts]
        self._costs = Costs(numbers, {}, sum(numbers))  # the same choice on every machine
        if self._in_seconds:
            reports = all_wide, self._runs.report(low, values=False)[0]
            casts = self._runs.journal.kept("casts", seconds_of_casts, lambda: None)
            self._costs = Costs.in_seconds(parts, measured, reports, casts, self._runs.run(wide).seconds)
            self._costs.fit(self._runs.run(low).seconds)
        self._add(self._base.name if as_start else "all low", low, frozenset(), all_low)
        every = frozenset(range(len(parts)))
        self._wide = self._policy(every)
        self._add("float32", self._wide, every)
        if not as_start:
            self._add(self._base.name, self._base, None)
        elif self._in_seconds:  # what an edit costs in float32 is in seconds, too
            self._edits = edits(measured, self._per)
            self._add_edits()
        best = self._pruned(self._bisected(path(parts, self._costs)))
        if self._in_seconds and self._has_runs():  # one more point, whose time counts
            self._is_within(best | free(parts, self._costs))
        self._add_as_start(best)
        self._reserved -= self._runs_in_formats
        for formats in [self._formats, *((each,) for each in self._formats)] if self._formats else []:
            self._add_in_formats(best, edits_in_formats(measured, self._per, formats))
        return self._chosen(best)

    def _fit_errors(self, measured: float) -> None:
        """To the error with all parts in the low dtype, where they are in another unit. What is off by more than chance is not of the same thing,
        and nothing is predicted then.
        """
        predicted, is_unit = self._predicted_error(()), self._predicts and self._parts.unit == "results"
        if 0 < measured < math.inf and 0 < predicted < math.inf:
            if not is_unit:
                self._parts.scale(measured / predicted)
            self._predicts &= 1 / _CHANCE < measured / predicted < _CHANCE
        else:
            self._predicts = is_unit and predicted == measured

    def _add(self, name: str, policy: Policy, in_float32: frozenset[int] | None, ran: Any = None) -> Point:
        ran = ran or self._runs.run(policy)
        point = Point(name, policy, ran.error, ran.seconds, 1, ran.memory)
        if in_float32 is not None:
            point = replace(
                point,
                predicted_error=self._known_error(in_float32),
                predicted_seconds=self._costs.predicted(in_float32) if self._in_seconds else None,
                in_float32=len(in_float32),
                result_bytes=sum(part.numbers * (4 if i in in_float32 else 2) for i, part in enumerate(self._parts)),
            )
        self._points.append(point)
        return point

    def _policy(self, in_float32: Collection[int]) -> Policy:
        return policy_of(self._base, self._parts, in_float32, self._others)

    def _predicted_error(self, in_float32: Collection[int]) -> float:
        return math.sqrt(sum(part.error**2 for i, part in enumerate(self._parts) if i not in in_float32))

    def _known_error(self, in_float32: Collection[int]) -> float | None:
        """The predicted error, unless it may be larger: no gradient comes to a part in the low dtype."""
        error = self._predicted_error(in_float32)
        is_least = any(part.hidden for i, part in enumerate(self._parts) if i not in in_float32) and error < math.inf
        return error if self._predicts and not is_least else None

    def _add_as_start(self, in_float32: Collection[int]) -> None:
        """The same ops in float32, and the others where the start has them: what follows its inputs needs no casts."""
        policy = policy_of(self._base, self._parts, in_float32, "start")
        if self._in_seconds and self._point_of(policy) is None and self._has_runs():
            self._add(f"{len(in_float32)} in float32, rest as {self._base.name}", policy, None)

    def _add_edits(self) -> None:
        """The start with the first edits for accuracy, and with those for speed beside the fewest for accuracy that are enough."""
        wide, low = ([edit.text for edit in self._edits if edit._list == title] for title in ("fp32", "lower"))
        enough = next((count for count in (0, *_EDITS) if self._is_edit_within(wide[:count], [])), 0)
        for count in _EDITS:
            self._is_edit_within(wide[:count], [])
            self._is_edit_within(wide[:enough], low[:count])

    def _add_in_formats(self, in_float32: Collection[int], found: list[Edit]) -> None:
        """What was found with the most edits into 8 bits, in their order, that the budget has room for beside it."""
        begin, wide = self._policy(in_float32), {self._parts[i]._entry for i in in_float32}
        waiting = [edit for edit in found if edit._entry not in wide]
        self._in_formats += waiting
        few, most = 0, len(waiting)
        within: Policy | None = None
        while few < most and self._has_runs():
            middle = (few + most + 1) // 2
            texts = [edit.text for edit in waiting[:middle]]
            policy = begin.with_edits(*texts)
            titles = " and ".join(sorted({edit._list for edit in waiting[:middle]}))
            name = " ".join(texts) if middle <= 2 else f"{middle} edits into {titles}"
            beside = f", {len(in_float32)} in float32" if in_float32 else ""
            point = self._point_of(policy) or self._add(name + beside, policy, None)
            if point.error <= self._budget:
                few, within = middle, policy
            else:
                most = middle - 1
        self._most_in_formats += [within] if within else []

    def _is_edit_within(self, wide: list[str], low: list[str]) -> bool:
        texts = [*wide, *low]
        policy = self._base.with_edits(*texts)
        point = self._point_of(policy)
        if point is None:
            name = f"{counted(len(wide), 'edit')} to fp32, {len(low)} to lower"
            point = self._add(" ".join(texts) if len(texts) <= 2 else name, policy, None)
        return point.error <= self._budget

    def _is_within(self, in_float32: Iterable[int]) -> bool:
        """By a run, or one that was."""
        chosen = frozenset(in_float32)
        policy = self._policy(chosen)
        point = self._point_of(policy)
        if point is None:
            same = sum(point.in_float32 == len(chosen) for point in self._points)
            point = self._add(f"{len(chosen)} in float32{f' ({same + 1})' if same else ''}", policy, chosen)
        return point.error <= self._budget

    def _point_of(self, policy: Policy) -> Point | None:
        return next((point for point in self._points if point.policy == policy), None)

    def _has_runs(self) -> bool:
        return self._runs.count < self._most - self._reserved

    def _bisected(self, order: list[int]) -> set[int]:
        """The shortest beginning of the order that is within the budget, as far as the runs allow."""
        if self._is_within(()):  # known already, and errors need not fall along the order
            return set()
        few, enough = 1, len(order)
        while few < enough and self._has_runs():
            middle = (few + enough) // 2
            if self._is_within(order[:middle]):
                enough = middle
            else:
                few = middle + 1
        return {*order[:enough]}

    def _pruned(self, kept: set[int]) -> set[int]:
        """Without parts that need not be in float32 and save something in the low dtype: those that the order had before others that do need it."""
        slack = self._budget**2 - self._predicted_error(kept) ** 2
        useful = [i for i in kept if self._costs.moved(kept, i) < 0]
        group: list[int] = []
        for i in sorted(useful, key=lambda i: (self._parts[i].error, i)):
            slack -= self._parts[i].error ** 2
            if slack < 0:
                break
            group.append(i)
        # What loses numbers alone may lose none that count: an exp that overflows below a fraction line.
        groups = [group, *([i] for i in useful if math.isinf(self._parts[i].error))]
        while groups and self._has_runs():
            group = groups.pop(0)
            if not group or self._is_within(kept - {*group}):
                kept = kept - {*group}
            elif len(group) > 1:
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        return kept

    def _chosen(self, best: set[int]) -> Tuned:
        policy = self._policy(best)
        own = next(point for point in self._points if point.policy == policy)
        if own.error > self._budget:
            raise ValueError(
                f"no policy stays within the budget of {self._budget:g}: with all ops in float32 the error is {apart(own.error, self._budget)}. "
                "The step casts by itself, changes tensors that are in no module, or draws other random numbers each time"
            )
        noise = self._time_in_turns(own) if self._in_seconds else None
        chosen = self._point_of(policy) or own
        if noise is not None:
            chosen = fastest(self._points, noise, self._base, self._wide)
        # Where the policy has each part, by its names for modules too.
        lines = lines_of(chosen.policy)
        rules = [lines.policy_of(lines.of(part.modules))._rule(part.op) for part in self._parts]
        parts = zip(self._parts, rules, self._costs.told(), strict=True)
        return Tuned(
            policy=Policy(chosen.policy._core.replaced(name="tuned")),
            start=self._base,
            budget=self._budget,
            error=chosen.error,
            check_error=self._runs.check(chosen.policy),
            runs=self._runs.count,
            calls=self._runs.calls,
            most_runs=self._most,
            cost=self._cost,
            points=tuple(self._points),
            parts=tuple(TunedPart(part, rule.action, seconds) for part, rule, seconds in parts),
            chosen=chosen,
            float32_seconds=next(point.seconds for point in self._points if point.policy == self._wide),
            noise=noise,
            _edits=(*self._edits, *self._in_formats),
            _may_try_8_bits=self._may_try_8_bits and not torch.accelerator.is_available(),
        )

    def _time_in_turns(self, own: Point) -> float:
        """Times what the search has found, float32, the start, and the fastest others that are within the budget. The noise of these times."""
        first = (own.policy, self._wide, self._base, *self._most_in_formats)
        within = [point for point in self._points if point.error <= self._budget]
        timed = sorted(within, key=lambda point: (point.policy not in first, point.seconds))[:_TIMED]
        left = self._most - self._runs.count - self._checks
        rounds = max(_ROUNDS, left // len(timed))
        # Float32 is what runs without a policy.
        again, noise = timed_in_turns(
            timed,
            rounds,
            lambda point: self._runs.run(None if point.policy == self._wide else point.policy, timed=True).seconds,
        )
        self._points = [next((each for each in again if each.policy == point.policy), point) for point in self._points]
        return noise


def _check_float32(report: Report) -> None:
    """Of a report in which all ops were to run in float32."""
    low = [row.op for row in report.rows if report.low_dtype in row.runs_in and row.decision == "unlisted"]
    computing = sorted({op for op in low if _core.computes(op)})
    if computing:
        raise ValueError(
            f"the step runs {', '.join(computing)} in {report.low_dtype} by itself. Remove its own casts from it"
        )
