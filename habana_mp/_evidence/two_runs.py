"""What the core has found of two runs (src/probe/comparison.cpp) put together to a ``Comparison``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

import habana_mp._core as _core
from habana_mp._evidence.comparison import Comparison, Difference, largest_first
from habana_mp._evidence.log_probabilities import LogProbabilities
from habana_mp._evidence.recordings.file import Kept
from habana_mp._evidence.recordings.terms import Terms
from habana_mp._policy.diff import PolicyDiff
from habana_mp._report.findings.groups import rule_in_words
from habana_mp._report.formats import FORMATS
from habana_mp._report.numbers import UNMEASURED
from habana_mp._show.module_path import ModulePath
from habana_mp._show.units import counted

_Key = tuple[str, str, bool, str, tuple[str, str]]  # op, module, backward, kind, lists for 8 bits in a and b
_ONLY_A = "only in a"
_JOINS = ("aten::cat", "aten::stack")  # they promote dtypes, and else only move numbers


class _Site(NamedTuple):
    op: str
    module: str
    rule: str
    source: str
    decision: str
    instead_of: str

    @property
    def place(self) -> str:
        return f"{self.op} in {self.module}" if self.module else self.op


class _Run:
    def __init__(self, recording: _core.Recording) -> None:
        self.calls = recording.calls
        self.losses = tuple(recording.losses)
        self.lost, self.returned = recording.lost, recording.returned
        self._sites = recording.sites

    def site(self, number: int) -> _Site:
        """The row of a report that a call belongs to."""
        call = self.calls[number]
        site = self._sites[call.site]
        op = site.op or call.inner.removeprefix("aten::")
        rule = rule_in_words(site.rule, site.decision, site.instead_of)
        return _Site(op, site.module, rule, site.source, site.decision, site.instead_of)

    def refused(self) -> list[tuple[str, str]]:
        """Ops of which no call was in the list for 8 bits that names them, and the lists."""
        sites = [self.site(number) for number, call in enumerate(self.calls) if call.inner and not call.backward]
        ran = {(site.op, site.decision) for site in sites}
        named = dict.fromkeys((site.op, site.instead_of) for site in sites if site.instead_of)
        return [each for each in named if each not in ran]

    def in_8_bits(self, number: int) -> str:
        """The list of a call in 8 bits; "" of others, and in the backward pass, where numbers are in the low dtype."""
        decision = self.site(number).decision if number >= 0 and not self.calls[number].backward else ""
        return decision if decision in FORMATS else ""

    def runs_in(self, number: int) -> str:
        """The dtypes of a call, or the list of one in 8 bits."""
        return self.in_8_bits(number) or (", ".join(self.calls[number].dtypes) if number >= 0 else "")


_NOT_SEEN = "it has tensors whose numbers cannot be read (subclasses, quantized ones)"
_BOTH_FILES = "both runs are recordings, so it does not run once more"
_OTHER_PROCESS = "its inputs in run a, which was another process, are gone"
_NOT_AGAIN = "it cannot run once more as in run a"


class TwoRuns:
    """Run b beside run a. A call is meant by its number in its run."""

    def __init__(
        self,
        found: _core.ComparedRuns,
        terms: Terms,
        kept: tuple[Kept, torch.Tensor | None],
        notes: Iterable[str] = (),
        *,
        both_files: bool = False,
    ) -> None:
        """``kept`` is run a, and the log-probabilities of run b."""
        first, log_probabilities = kept
        self._terms, self._other_process, self._both_files = terms, bool(first.file), both_files
        self._log_probabilities = first.log_probabilities, log_probabilities
        self.a, self.b = _Run(found.first), _Run(found.second)
        self._compared = found.calls
        self._choices: dict[tuple[str, str, bool], int] = {}
        self._changes = found.changes
        self._known = self._known_in_a()
        self._notes = [
            *notes,
            *(
                f"No call of {op} was in {title} in run {run}, whose list names it: they ran as in the lower list."
                for run, found in (("a", self.a), ("b", self.b))
                for op, title in found.refused()
            ),
        ]
        self._same_gradients = found.same_gradients
        self._gradient_error = _part(found.gradient_error) if found.gradients else None
        self._have_results = bool(self.a.returned and self.b.returned)
        self._result_error = _part(found.result_error) if self._have_results else None
        self._same_results = found.same_results

    def comparison(
        self,
        names: tuple[str, str],
        policy_diff: PolicyDiff | None = None,
        environment_diff: Mapping[str, tuple[str, str]] | None = None,
    ) -> Comparison:
        differs = any(each.kind not in ("same", "only in b") for each in self._compared)
        matched = sum(each.match >= 0 for each in self._compared)
        notes = self._notes_on_ends(matched)
        same = not (differs or notes) and self._same_ends()
        rows = self._rows()
        return Comparison(
            names=names,
            same=same,
            first=None if same else self._first(rows),
            worst=None if same else next(iter(largest_first(rows.values())), None),
            rows=tuple(rows.values()),
            losses=(self.a.losses, self.b.losses),
            gradient_error=self._gradient_error,
            result_error=self._result_error,
            calls=matched,
            lost=self.a.lost + self.b.lost,
            notes=(*self._notes, *notes),
            policy_diff=policy_diff,
            environment_diff=dict(environment_diff or {}),
            log_probabilities=self._compared_log_probabilities(),
            rtol=self._terms.rtol,
            both_recorded=self._both_files,
        )

    def _same_ends(self) -> bool:
        """Whether losses, gradients and results are the same, as far as both runs have them."""
        rtol = self._terms.rtol
        losses = not self.a.losses or not self.b.losses or self._same_losses(rtol)
        gradients = self._same_gradients or _within(self._gradient_error, rtol)
        return (
            losses and gradients and (not self._have_results or self._same_results or _within(self._result_error, rtol))
        )

    def _same_losses(self, rtol: float) -> bool:
        if len(self.a.losses) != len(self.b.losses):
            return False
        return all(
            repr(a) == repr(b) or abs(b - a) <= rtol * abs(a) for a, b in zip(self.a.losses, self.b.losses, strict=True)
        )

    def _compared_log_probabilities(self) -> LogProbabilities | None:
        a, b = self._log_probabilities
        return None if a is None or b is None or a.shape != b.shape else LogProbabilities.of(a, b)

    def _notes_on_ends(self, matched: int) -> list[str]:
        """What keeps the runs from being proved the same beside their calls."""
        notes = [] if matched else ["The two runs have no call in common."]
        if self._have_results and self._result_error is None:
            notes.append("The results of the steps have different sizes and are not compared.")
        a, b = self._log_probabilities
        if a is not None and b is not None and a.shape != b.shape:
            notes.append(f"log_probabilities has {len(a)} tokens in run a and {len(b)} in run b, and is not compared.")
        in_parts = sum(each.partner in ("whole", "parts") for each in self._compared)
        if in_parts and not self._terms.rtol:
            notes.append(
                f"{counted(in_parts, 'call')} have results that are parts of others. Samples of them are compared, so without rtol they never count as the same."
            )
        if lost := self.a.lost + self.b.lost:
            notes.append(
                f"{counted(lost, 'call')} could not be compared. compare covers the first 65,536 calls of a run whose numbers can be read."
            )
        if unseen := sum(not each.seen for each in self._compared):
            notes.append(
                f"{counted(unseen, 'call')} have tensors whose numbers cannot be read (subclasses, quantized ones)."
            )
        return notes

    def _known_in_a(self) -> set[int]:
        """Calls of a that are calls of b, and what is inside of them and round them: one run may see an op where the other sees its parts."""
        known = {number for each in self._compared if each.match >= 0 for number in (each.match, *each.more)}
        for number in [*known]:
            outer = self.a.calls[number].outer
            while outer >= 0 and outer not in known:
                known.add(outer)
                outer = self.a.calls[outer].outer
        for number, call in enumerate(self.a.calls):  # what is inside comes behind
            if call.outer in known:
                known.add(number)
        return known

    def _rows(self) -> dict[_Key, Difference]:
        groups: dict[_Key, list[int]] = {}
        for number, each in enumerate(self._compared):
            place = self._key(number)[:3]  # also of calls that choose alike
            self._choices[place] = self._choices.get(place, 0) + each.flips[1]
            if each.kind != "same" and self.b.calls[number].inner:
                groups.setdefault(self._key(number), []).append(number)
        changes = self._by_place()
        whole = sum(abs(change) for change in changes.values())
        rows = {}
        for key, numbers in groups.items():
            # What a place inherits to others counts for the row that makes it.
            change = changes.pop(key[:2], 0.0) if key[3] in ("precision", "given") and not key[2] else 0.0
            rows[key] = self._row(key, numbers, change, abs(change) / whole if whole > 0 else 0.0)
        for number, call in enumerate(self.a.calls):
            if call.inner and number not in self._known and call.outer < 0:
                key = self._key_of_a(number)
                calls = rows[key].calls + 1 if key in rows else 1
                rows[key] = self._row_of_a(key, number, calls)
        return rows

    def _key(self, number: int) -> _Key:
        site, found = self.b.site(number), self._compared[number]
        lists = self.a.in_8_bits(found.match), self.b.in_8_bits(number)
        return site.op, site.module, self.b.calls[number].backward, found.kind, lists

    def _key_of_a(self, number: int) -> _Key:
        site = self.a.site(number)
        return site.op, site.module, self.a.calls[number].backward, _ONLY_A, (self.a.in_8_bits(number), "")

    def _by_place(self) -> dict[tuple[str, str], float]:
        """Changes of the loss by op and module."""
        of_site = {call.site: number for number, call in enumerate(self.b.calls)}
        changes: dict[tuple[str, str], float] = {}
        for site, change in self._changes.items():
            if site in of_site and math.isfinite(change):
                named = self.b.site(of_site[site])
                changes[named.op, named.module] = changes.get((named.op, named.module), 0.0) + change
        return changes

    def _row(self, key: _Key, numbers: list[int], change: float, share: float) -> Difference:
        op, module, backward, kind, _ = key
        each = [self._compared[number] for number in numbers]
        own, other = numbers[0], each[0].match
        site = self.b.site(own)
        flipped = sum(call.flips[0] for call in each)
        return Difference(
            op=op,
            module=module,
            phase="backward" if backward else "forward",
            kind=kind,
            calls=len(numbers),
            made=_largest(call.made for call in each),
            total=_largest(call.total for call in each),
            loss_change=change,
            share=share,
            inner=self.b.calls[own].inner,
            runs_in=(self.a.runs_in(other), self.b.runs_in(own)),
            rules=("" if other < 0 else self.a.site(other).rule, site.rule),
            source=site.source,
            unmeasured=self._why_unmeasured(each, own),
            choices=self._choices[key[:3]] if flipped else 0,
            flipped=flipped,
            counterpart=self._counterpart(each[0], own),
            decisions=("" if other < 0 else self.a.site(other).decision, site.decision),
        )

    def _counterpart(self, call: _core.ComparedCall, number: int) -> str:
        """What run a has in place of a call, if that is not the same op in a module of the same path."""
        if call.match < 0:
            return ""
        a, b = self.a.site(call.match), self.b.site(number)
        if call.partner == "call" and ModulePath.of(a.module).path == ModulePath.of(b.module).path:
            return ""
        places = dict.fromkeys(self.a.site(each).place for each in (call.match, *call.more))
        return ", ".join(places)

    def _why_unmeasured(self, calls: list[_core.ComparedCall], number: int) -> str:
        """Of a row in which a difference is not measured in any of the calls."""
        if all(math.isnan(call.total) for call in calls):
            call = calls[0]
            if call.match < 0:
                return f"run a has no such call{' of these sizes' if self._terms.rtol else ''}"
            return self._why_no_total(call, number) if call.seen else _NOT_SEEN
        if not all(math.isnan(call.made) for call in calls):
            return ""
        reasons = (UNMEASURED[call.why] if call.why in UNMEASURED else self._why_not_again(call) for call in calls)
        return ", ".join(dict.fromkeys(reasons))

    def _why_no_total(self, call: _core.ComparedCall, number: int) -> str:
        a, b = self.a.calls[call.match].sizes, self.b.calls[number].sizes
        if call.partner != "call":
            return "the samples of the two runs have no numbers in common"
        if a == b:
            return "one of the runs has no sample of its results, because a recording has little room"
        return f"its results have different sizes, {_sizes(a)} in run a and {_sizes(b)} in run b"

    def _why_not_again(self, call: _core.ComparedCall) -> str:
        if self._both_files and call.seen:
            return _BOTH_FILES
        if self._other_process and call.kind == "given":
            return _OTHER_PROCESS
        return _NOT_AGAIN if call.seen else _NOT_SEEN

    def _row_of_a(self, key: _Key, number: int, calls: int) -> Difference:
        op, module, backward, kind, _ = key
        site = self.a.site(number)
        return Difference(
            *(op, module, "backward" if backward else "forward", kind, calls, None, None, 0.0, 0.0),
            inner=self.a.calls[number].inner,
            runs_in=(self.a.runs_in(number), ""),
            rules=(site.rule, ""),
            source=site.source,
            unmeasured="run b has no such call",
        )

    def _first(self, rows: dict[_Key, Difference]) -> Difference | None:
        """The first call whose numbers differ; or the one before it that has no counterpart and made what it was given.

        Where calls that do not differ made what it was given, something else has written to that since.
        """
        for number, each in enumerate(self._compared):
            if each.kind in ("same", "only in b"):
                continue
            for given in each.arguments:
                if given.maker >= 0 and self._makes(self.b, given.maker, self._is_unmatched):
                    return rows[self._key(_back(given.maker, self.b, self._is_unmatched))]
                if given.first_maker >= 0 and self._makes(self.a, given.first_maker, self._is_unknown):
                    return rows[self._key_of_a(_back(given.first_maker, self.a, self._is_unknown))]
            row = rows[self._key(number)]
            if each.kind != "passed on":
                return row
            same_makers = all(
                given.maker >= 0 and self._compared[given.maker].match == given.first_maker for given in each.arguments
            )
            return replace(row, kind="written" if same_makers else "given")
        return next((row for row in rows.values() if row.kind.startswith("only")), None)

    def _makes(self, run: _Run, number: int, is_unmatched: Callable[[int], bool]) -> bool:
        """Whether a call without a counterpart may make a difference: with ``rtol``, none that only moves what the other run has too, or rounds less."""
        if not is_unmatched(number):
            return False
        call, rtol = run.calls[number], self._terms.rtol
        if not rtol or not (call.moves or call.inner in _JOINS) or call.rounding > rtol:
            return True
        return any(0 <= maker < number and self._makes(run, maker, is_unmatched) for maker in call.makers)

    def _is_unmatched(self, number: int) -> bool:
        return self._compared[number].kind == "only in b"

    def _is_unknown(self, number: int) -> bool:
        return number not in self._known


def _back(number: int, run: _Run, is_unmatched: Callable[[int], bool]) -> int:
    """From a call without a counterpart to the first of such calls that lead to it."""
    while True:
        before = [maker for maker in run.calls[number].makers if 0 <= maker < number and is_unmatched(maker)]
        if not before:
            return number
        number = min(before)


def _sizes(sizes: list[list[int]]) -> str:
    return ", ".join(map(str, sizes[:2])) + (", ..." if len(sizes) > 2 else "")


def _within(error: float | None, rtol: float) -> bool:
    return rtol > 0 and error is not None and error <= rtol


def _part(value: float) -> float | None:
    return None if math.isnan(value) else value


def _largest(values: Iterable[float]) -> float | None:
    return max((value for value in values if not math.isnan(value)), default=None)
