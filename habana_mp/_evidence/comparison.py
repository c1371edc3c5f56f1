"""``Comparison``: where two runs differ, by op and module, as its users see it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from textwrap import indent
from typing import Any, get_args

from habana_mp._evidence.log_probabilities import LogProbabilities
from habana_mp._policy.diff import PolicyDiff, words
from habana_mp._report.data.base import ListName
from habana_mp._show.module_path import common
from habana_mp._show.short import Short
from habana_mp._show.units import counted
from habana_mp._show.units import share as percent
from habana_mp._show.writing import Document, plain

_LISTS = frozenset(get_args(ListName))
_MOST_ROWS = 12
_MOST_PAGE_ROWS = 400
_MOST_NAMES = 6
_MOST_FLIPS = 6
# The kinds of differences but "precision", whose reasons are dtypes and rules.
_REASONS = {
    "given": "a weight, an input or a constant of it differs, or its input comes from a different op",
    "result": "other numbers from the same inputs in the same dtypes",
    "written": "something that is not an op of torch has written to its inputs",
    "passed on": "passed on from calls before it",
    "only in a": "run a alone calls it",
    "only in b": "run b alone calls it",
}


@dataclass(frozen=True, repr=False)
class Difference(Short):
    """The calls of an op in a module that differ between run a and run b.

    Attributes:
        op: the op.
        module: the module that called it.
        phase: "forward" or "backward".
        kind: the reason. "precision": another dtype, or another list for 8 bits. "given": another weight, input or constant. "result":
            another result from the same inputs in the same dtypes. "passed on": the inputs differ, and the op adds nothing. "only in a",
            "only in b": one run alone calls it. ``Comparison.first`` may also have "written": something other than an op wrote to the memory between two calls.
        calls: how many calls differ.
        made: the difference that the op makes from the same inputs, relative to the size of its results; the largest of all calls. None
            if it is not measured.
        total: the difference of its results between the two runs, in the same unit. None if it is not measured.
        loss_change: the change of the loss that it makes, to first order.
        share: its part of all such changes; 0 if no gradients are known.
        inner: the op that torch called inside it.
        runs_in: the dtypes in which it ran, in run a and in run b; for an op in 8 bits its list, "int8" or "weight_int8".
        rules: its rules, in run a and in run b.
        source: the line that called it.
        unmeasured: the reason why ``made`` or ``total`` is None; "" if both are measured.
        choices: how many choices an op makes by its numbers: classes of argmax, what topk takes, places of sort, truth values of a comparison.
        flipped: how many of these choices are others in run b.
        counterpart: what run a has in place of the calls, if that is not the same op in a module of the same path: "linear in GPT: qkv".
        decisions: what became of the calls in run a and in run b, as in the rows of a report: "lower", "int8".

    Example:
        >>> found = hmp.compare(lambda: model(x), None, "balanced")
        >>> found.first.runs_in
        ('float32', 'bfloat16')
    """

    op: str
    module: str
    phase: str
    kind: str
    calls: int
    made: float | None
    total: float | None
    loss_change: float
    share: float
    inner: str
    runs_in: tuple[str, str]
    rules: tuple[str, str]
    source: str
    unmeasured: str = ""
    choices: int = 0
    flipped: int = 0
    counterpart: str = ""
    decisions: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        lines = [f"{self._place}, in the {self.phase} pass: {self.why}"]
        lines += [f"  in run a {self.counterpart}"] if self.counterpart else []
        lines += [f"  at {self.source}"] if self.source else []
        return "\n".join(lines)

    def _line(self) -> str:
        return f"{self._place}, {self.phase}: {self.kind}"

    @property
    def _place(self) -> str:
        return _place(self.op, self.module)

    @property
    def why(self) -> str:
        """The kind as text, with the dtypes and rules, and with the reason if the difference is not measured."""
        reason = _REASONS.get(self.kind) or ", ".join(
            f"{run} {dtype}{f' ({rule})' if rule else ''}"
            for run, dtype, rule in zip("ab", self.runs_in, self.rules, strict=True)
        )
        return reason + (f"; not measured: {self.unmeasured}" if self._lacks_reason else "")

    @property
    def _lacks_reason(self) -> bool:
        """Whether the kind is not the reason why the difference is not measured."""
        return bool(self.unmeasured) and not self.kind.startswith("only")


@dataclass(frozen=True, repr=False)
class Comparison(Short, Document):
    """The result of ``compare``: run a and run b side by side. ``print`` and ``to_html`` show it.

    Attributes:
        names: the names of run a and run b.
        same: True if all paired calls, and the losses, gradients and results that both runs have, are the same within ``rtol``, and
            nothing was left uncompared.
        first: the first call that differs, or None.
        worst: the largest difference, or None: by ``share`` if shares are known, else by ``made``.
        rows: the differences, in the order in which they first appear.
        losses: the losses of run a and of run b, with which their backward passes began.
        gradient_error: the difference of the gradients of run b from those of run a, relative to their size; None without gradients.
        result_error: the same for the results of the steps; None without results or if their sizes differ.
        calls: how many calls of run b were compared.
        lost: how many calls were not compared.
        notes: remarks, such as calls that could not be compared.
        policy_diff: what the policies of run a and run b decide otherwise; None if one of the runs has none, or both have the same one.
        environment_diff: what a recording was made with and the other run was not: "torch", "habana_mp", "Python", "machine", "CPU",
            "instruction set", "threads", "devices" or "policy", each with the values of run a and run b. It does not make ``same`` False.
        log_probabilities: the log-probabilities of both runs, if both returned as many, as
            ``{"log_probabilities": tensor}``; else None.
        rtol: the tolerance within which numbers count as the same.
        both_recorded: True if both runs are recordings. Then no op ran once more, and no shares are known.

    Example:
        >>> found = hmp.compare(lambda: model(x), None, "balanced")
        >>> found.first.kind
        'precision'
    """

    names: tuple[str, str]
    same: bool
    first: Difference | None
    worst: Difference | None
    rows: tuple[Difference, ...]
    losses: tuple[tuple[float, ...], tuple[float, ...]]
    gradient_error: float | None
    result_error: float | None
    calls: int
    lost: int
    notes: tuple[str, ...] = ()
    policy_diff: PolicyDiff | None = None
    environment_diff: dict[str, tuple[str, str]] = field(default_factory=dict)
    log_probabilities: LogProbabilities | None = None
    rtol: float = 0.0
    both_recorded: bool = False

    def assert_same(self) -> None:
        """Raise if the runs differ. For tests.

        Raises:
            AssertionError: the runs differ. The message names the first op that does.
        """
        if not self.same:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        a, b = self.names
        lines = [f"a: {a}", f"b: {b}", *self._environments(), *self._policies(), *self.notes]
        if self.same:
            within = f" within {self.rtol:g}" if self.rtol else ""
            lines.append(f"The same numbers in {counted(self.calls, 'call')}{within}.")
        if self.first is not None:
            lines += ["", "first difference", indent(str(self.first), "  ")]
        if self.worst is not None and self.worst != self.first:
            lines += ["largest difference made", indent(str(self.worst), "  ")]
        lines += ["", *self._flips()] if self.flips() else []
        lines += ["", *self._table()] if self.rows else []
        lines += ["", *self._ends()] if not self.same else []
        lines += [*self._log_probabilities()] if self.log_probabilities is not None else []
        return "\n".join(lines)

    def _line(self) -> str:
        a, b = self.names
        found = "the same numbers" if self.same else f"{counted(len(self.rows), 'op')} with other numbers"
        others = f", other {', '.join(self.environment_diff)}" if self.environment_diff else ""
        return f"{a} and {b}, {found}{others}"

    def differing_ops(self) -> dict[str, tuple[str, str]]:
        """Return the ops of ``rows`` that the policies of run a and run b decided otherwise, with both decisions.

        Where the names of the lists do not show it, as they are limited to modules, or as weights in some modules cannot be in 8 bits, the key has
        the modules: "linear in Net: layers.*.mlp".
        """
        if self.policy_diff is None:
            return {}
        ops = self.policy_diff.ops
        found = {op: ops[op] for op in dict.fromkeys(row.op for row in self.rows) if op in ops}
        modules: dict[tuple[str, tuple[str, str]], list[str]] = {}
        for row in self.rows:
            (rule_a, rule_b), (a, b) = row.rules, row.decisions
            is_pair = row.phase == "forward" and not row.kind.startswith("only") and not row.counterpart
            if is_pair and rule_a != rule_b and a != b and _are_others((a, b), found.get(row.op)):
                modules.setdefault((row.op, (a, b)), []).append(row.module)
        for (op, pair), where in modules.items():
            found.setdefault(_place(op, common(where)), pair)
        return found

    def _environments(self) -> Iterator[str]:
        if self.environment_diff:
            yield self.environments()

    def environments(self) -> str:
        """Return ``environment_diff`` as a line, "" if it is empty: "a: torch 2.12.0, b: torch 2.13.0"."""
        pairs = self.environment_diff.items()
        return ", ".join(
            f"{run}: " + ", ".join(f"{name} {values[i]}" for name, values in pairs)
            for i, run in enumerate("ab" if pairs else "")
        )

    def _policies(self) -> Iterator[str]:
        if self.policy_diff is None:
            return
        here = [f"{op} {a} / {b}" for op, (a, b) in self.differing_ops().items()]
        some = ", ".join(here[:_MOST_NAMES]) + (", ..." if len(here) > _MOST_NAMES else "")
        yield f"a / b: {some or 'no op with other numbers has another rule'}"
        settings = [f"{title} {words(a)} / {words(b)}" for title, (a, b) in self.policy_diff.settings.items()]
        if settings:
            yield f"a / b: {', '.join(settings)}"

    def makers(self) -> tuple[Difference, ...]:
        """Return the rows that make a difference or have no counterpart, the largest first."""
        return tuple(largest_first(self.rows))

    def main_makers(self, part: float = 0.9) -> tuple[Difference, ...]:
        """Return the fewest rows that together have at least ``part`` of all shares, the largest first. Empty if no gradient has measured a share.

        Raises:
            ValueError: both runs are recordings. What an op makes is measured by running it once more.
        """
        if self.both_recorded:
            raise ValueError(f"both runs are recordings, so no shares are known. {self._run_one()}")
        rows: list[Difference] = []
        for row in largest_first(self.rows):
            if not row.share or sum(each.share for each in rows) >= part:
                break
            rows.append(row)
        return tuple(rows)

    def _log_probabilities(self) -> Iterator[str]:
        yield f"log-probabilities: {self.log_probabilities}"
        if self.both_recorded and not self.same:
            yield f"  {self._run_one()}"
        main = () if self.both_recorded else self.main_makers()
        if main:
            some = ", ".join(f"{row._place} {percent(row.share, 1.0)}" for row in main[:_MOST_NAMES])
            more = f", and {counted(len(main) - _MOST_NAMES, 'more op')}" if len(main) > _MOST_NAMES else ""
            yield f"  90 % of the {'change of the loss' if self.losses[1] else 'gap'}: {some}{more}"

    def _run_one(self) -> str:
        """What to do to know shares."""
        return f"To see which ops make the gap, run one of the two: hmp.compare(step, {self.names[0]!r})"

    def flips(self) -> tuple[Difference, ...]:
        """Return the rows of ops whose choices differ (``flipped``), those with the largest part of their choices first."""
        flipped = [row for row in self.rows if row.flipped]
        return tuple(sorted(flipped, key=lambda row: -row.flipped / row.choices))

    def _flips(self) -> Iterator[str]:
        flips = self.flips()
        for row in flips[:_MOST_FLIPS]:
            yield f"{row._place}: {row.flipped:,} of {row.choices:,} choices differ"
        if len(flips) > _MOST_FLIPS:
            yield f"... and {counted(len(flips) - _MOST_FLIPS, 'more op')}"

    def _table(self) -> Iterator[str]:
        alone = [row for row in self.rows if row.kind.startswith("only") and row != self.first]
        makers = [row for row in self.makers() if row not in alone]
        head = ("op", "module", "phase", "calls", "made here", "in all", "share", "a / b")
        cells = [
            (
                row.op,
                row.module,
                row.phase,
                str(row.calls),
                _part(row.made),
                _part(row.total),
                percent(row.share, 1.0) if row.share else "",
                (" / ".join(row.runs_in) if row.kind == "precision" else row.kind)
                + (f"; {row.unmeasured}" if row._lacks_reason else ""),
            )
            for row in makers[:_MOST_ROWS]
        ]
        widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
        for line in [head, *cells] if makers else []:
            yield "  ".join(
                cell.rjust(width) if 3 <= i <= 6 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
        if len(makers) > _MOST_ROWS:
            yield f"... and {len(makers) - _MOST_ROWS} more"
        for run in "ab":
            ops = [row for row in alone if row.kind == f"only in {run}"]
            if ops:
                names = list(dict.fromkeys(row.op for row in ops))
                some = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
                yield f"only in {run}: {counted(sum(row.calls for row in ops), 'call')} ({some})"
        passed = sum(row.kind == "passed on" for row in self.rows)
        if passed:
            yield f"{counted(passed, 'other')} pass on what they were given."

    def _ends(self) -> Iterator[str]:
        for a, b in list(zip(*self.losses, strict=False))[:1]:
            yield f"loss: {a:.8g} and {b:.8g}"
        if self.gradient_error is not None:
            yield f"gradients differ by {_part(self.gradient_error)}"
        if self.result_error is not None:
            yield f"results differ by {_part(self.result_error)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values. Numbers that are not finite are None."""
        values: dict[str, Any] = plain({**asdict(self), "format": "habana_mp.comparison", "version": 1})
        return values

    def _page(self) -> str:
        from markupsafe import Markup

        from habana_mp._show.depth import Place, depth, place_name
        from habana_mp._show.html import whole_page

        after = [*_after_backward(self.rows)]
        forward = [row for row in self.rows if row.phase == "forward" and row not in after]
        picture = depth([Place(place_name(row.op, row.module), row.made, row.total, row.share) for row in forward])
        passed_on = (row for row in self.rows if row.kind == "passed on")
        rows = [row for row in (*self.makers(), *passed_on) if row not in after]
        diff = self.policy_diff
        return whole_page(
            "comparison.html",
            found=self,
            settings={} if diff is None else {name: tuple(map(words, pair)) for name, pair in diff.settings.items()},
            other_rules={} if diff is None else diff.ops,
            rules_here=self.differing_ops(),
            rows=rows[:_MOST_PAGE_ROWS],
            after_backward=after[:_MOST_PAGE_ROWS],
            more=max(0, len(rows) - _MOST_PAGE_ROWS),
            picture=Markup(picture),  # noqa: S704 - of a template that escapes
        )


def largest_first(rows: Iterable[Difference]) -> list[Difference]:
    """Those that make a difference or have no counterpart."""
    made = [row for row in rows if row.kind != "passed on"]
    return sorted(made, key=lambda row: (-row.share, -(row.made or 0.0)))


def _after_backward(rows: Iterable[Difference]) -> Iterator[Difference]:
    """What an optimizer does, and the like: it runs outside of modules when a backward pass has run, and changes no loss of this step."""
    backward = False
    for row in rows:
        backward |= row.phase == "backward"
        if backward and row.phase == "forward" and not row.module and not row.share:
            yield row


def _are_others(lists: tuple[str, str], everywhere: tuple[str, str] | None) -> bool:
    """Whether calls ran by other lists than those that the policies have the op in, if they do."""
    pairs = zip(lists, everywhere or (), strict=False)
    return everywhere is None or any(one != other and {one, other} <= _LISTS for one, other in pairs)


def _place(op: str, module: str) -> str:
    return f"{op} in {module}" if module else op


def _part(value: float | None) -> str:
    if value is None:
        return "not measured"
    return "not finite" if math.isinf(value) else f"{value:.2g}" if value else "0"
