"""The beginning of the sequence of edits that is worth taking, what it leaves, and how to try it: the head of the advice."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import habana_mp._core as _core
from habana_mp._cast import dtype_name
from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.edit import ALL_LISTS
from habana_mp._policy.folder import presets
from habana_mp._policy.policy import Policy
from habana_mp._report.data import Report
from habana_mp._report.edits.edits import Edit, edits
from habana_mp._report.errors.objective import Objective
from habana_mp._report.findings.unknown import no_edit
from habana_mp._report.sums import is_measurable, seconds_of_steps
from habana_mp._show.units import counted, encodable, share

# The groups of a file of edits.
_TITLES = {
    "fp32": "for accuracy",
    "lower": "for speed",
}
_IN_FORMATS = "in 8 bits, first what adds least error for the time that it saves"
_MOST_OPTIONS = 20  # edits of a command line; a list file may be hundreds
_GAIN = 0.1  # of the error that is left, which each edit takes away on average that is worth a line in a list


@dataclass(frozen=True)
class Beginning:
    """Edits to take together. ``step`` is the time that ``seconds`` is a part of, ``rounding`` are ops in the low dtype that they do not move, and
    ``given_low`` those of the lower list that rounded nothing, because they were given the low dtype: with the edits that may be float32.
    """

    edits: tuple[Edit, ...]
    errors: tuple[
        tuple[str, float, float], ...
    ]  # of each loss: what it is called, now, and with the edits; none where it is not known
    step: float
    rounding: tuple[str, ...] = ()
    given_low: tuple[str, ...] = ()
    all_seen: bool = True  # nothing rounds but what a list lowers, as far as the report can know

    @property
    def seconds(self) -> float:
        return sum(edit.seconds for edit in self.edits)

    def __str__(self) -> str:
        """``+mul:fp32 leaves 0.0004 of 0.0020, the error of the loss; +3 % a step``."""
        effects = [*self._effects()]
        if not effects:
            return f"no edit takes away {share(_GAIN, 1.0)} of the error"
        names = self.edits[0].text if len(self.edits) == 1 else f"these {len(self.edits)} edits"
        return f"{names} {' and '.join(effects)}; {self._time()}{self._exact()}"

    def _exact(self) -> str:
        if not self.errors or any(left for *_, left in self.errors):
            return ""
        if self.rounding:
            return f"; {_ops(self.rounding, 'still round')}, which no error here has"
        if self.given_low:
            return f"; {_ops(self.given_low, 'stay')} in the lower list, and may round then"
        return "; then nothing is rounded, as without a policy" if self.all_seen else ""

    def _effects(self) -> Iterator[str]:
        one = len(self.edits) == 1
        if lost := sum(edit.lost for edit in self.edits):
            yield f"{'keeps' if one else 'keep'} {counted(lost, 'number')} finite"
        if self.errors:
            each = (f"{left:.2g} of {now:.2g}, the error of {what}" for what, now, left in self.errors)
            yield f"{'leaves' if one else 'leave'} {', and '.join(each)}"

    def _time(self) -> str:
        if not self.seconds or not self.step:
            return "no time"
        if not is_measurable(self.seconds, self.step):
            return "no time that can be measured"
        return f"{'+' if self.seconds > 0 else '-'}{share(abs(self.seconds), self.step)} a step"


def beginning(report: Report, found: Sequence[Edit]) -> Beginning | None:
    """Of the ``edits`` of a report, which may be none: those against lost numbers, then those for accuracy as far as each takes away a tenth of the
    error on average. On average, because an edit may change nothing until the next one is there too.
    """
    if not found:
        return None
    lost = [edit for edit in found if edit.lost]
    wide = [edit for edit in found if edit.error_after is not None and edit._list == "fp32"]
    objective = Objective(report)
    now = objective.errors() if objective.known else {}
    left, taken = objective.weighed(now) if now else 0.0, 0
    for number, edit in enumerate(wide, start=1):
        after = objective.weighed(_errors_after(edit, now))
        if after <= left * (1 - _GAIN) ** (number - taken):
            left, taken = after, number
    after_all = _errors_after(wide[taken - 1], now) if taken else {}
    errors = tuple((objective.full_name(loss), now[loss], error) for loss, error in after_all.items())
    taken_edits = (*lost, *wide[:taken])
    lowered = _lowered(report, taken_edits)
    rounding = tuple(op for op, rounds in lowered if rounds)
    given_low = tuple(op for op, rounds in lowered if not rounds)
    all_seen = not report.forked_casts and not _has_own_low(report)
    return Beginning(taken_edits, errors, seconds_of_steps(report), rounding, given_low, all_seen)


def _lowered(report: Report, taken: Iterable[Edit]) -> list[tuple[str, bool]]:
    """Ops of the lower list that are in no edit, and whether they rounded: one without a share of the error may hide behind one that has a larger one."""
    moved = {edit.op for edit in taken}
    found = []
    for op, rows in groupby(sorted(report.rows, key=lambda row: row.op), lambda row: row.op):
        lowered = [row for row in rows if row.decision == "lower"]
        if lowered and op not in moved:
            found.append((op, any(row.casts or row.measured.ran.squares for row in lowered)))
    return found


def _has_own_low(report: Report) -> bool:
    """Whether the program has tensors in a low dtype that no op has made, such as weights, or makes some itself."""
    low = frozenset(_core.LOW_DTYPES)
    given = any(edge.maker < 0 and edge.dtype in low for edge in report.edges or [])
    return given or any(
        row.decision == "unlisted" and row.dtypes == ["float32"] and low & row.made_bytes.keys() for row in report.rows
    )


def _ops(names: Sequence[str], do: str) -> str:
    """``bmm and 2 other ops still round``."""
    more = f" and {counted(len(names) - 1, 'other op')}" if len(names) > 1 else ""
    return f"{names[0]}{more} {do}{'' if more else 's'}"


def _errors_after(edit: Edit, losses: Iterable[str]) -> dict[str, float]:
    """Of each loss, or of the one that there is."""
    return {each.loss: each.error_after for each in edit.losses} or dict.fromkeys(losses, edit.error_after or 0.0)


def how_to_try(report: Report, edits: Sequence[str]) -> str:
    """A command line if the report is of a script whose policy it can name, else what to add to the one that ran, or a line of Python."""
    policies = {(each.name, each.text): each for each in report.policies}
    (name, text), own = next(iter(policies.items()), (("", ""), None))
    preset, _, changed = name.partition("+")  # "balanced+edits"
    made = _options_between(preset, text) if len(policies) == 1 and preset in presets() else None
    if report.title.endswith(".py") and own is not None and own.front_end == "convert" and len(policies) == 1:
        options = [option for edit in edits for option in ("--edit", edit)]
        if made is None and changed:
            return f"the same command with {shlex.join(options)} before {report.title}"
        if made is not None:
            # They are no part of a report: only those of the script that runs here are known.
            runs_here = [Path(each).name for each in sys.argv[:1]] == [Path(report.title).name]
            arguments = sys.argv[1:] if runs_here else []
            before = ["habana-mp", "report", "--values", "--policy", preset]
            return shlex.join([*before, *made, *options, report.title, *arguments])
    policy = f"hmp.Policy.load({name!r})" if made == [] else "policy"
    return f"policy = {policy}.with_edits({', '.join(map(repr, edits))})"


def _options_between(preset: str, policy: str) -> list[str] | None:
    """What makes the policy of this text of a preset on a command line. None where a line has no room for it."""
    begin = Policy.load(preset)
    try:
        wanted = Policy(_core.Policy.parse(encodable(policy)))
    except ValueError:  # of a damaged report
        return None
    options = [] if begin.low_dtype == wanted.low_dtype else ["--low-dtype", dtype_name(wanted.low_dtype)]
    begin = begin.with_low_dtype(wanted.low_dtype)
    found = PolicyDiff.between(begin, wanted).ops.items()
    edits = [f"-{op}" if to == "rest" else f"+{op}:{to}" for op, (_, to) in found if to in (*ALL_LISTS, "rest")]
    if len(edits) > _MOST_OPTIONS or begin.with_edits(*edits) != wanted:
        return None
    return options + [option for edit in edits for option in ("--edit", edit)]


def edits_text(report: Report, per: str = "op", formats: Sequence[str] = ()) -> str:
    """A file of edits for --edit; a comment says which to take, or why there are none. With ``formats``, of those into 8 bits."""
    found = edits(report, per, formats)
    if not found:
        return f"# {'; '.join(no_edit(report))}\n"
    if formats:  # one sequence: the lines behind the error that is accepted may go
        return f"# {_IN_FORMATS}\n" + "".join(f"{edit.text}  # {edit.why}\n" for edit in found)
    return f"# {beginning(report, found)}\n\n{_in_groups(found)}"


def _in_groups(found: Iterable[Edit]) -> str:
    lines: dict[str, list[str]] = {}
    for edit in found:
        lines.setdefault(edit._list, []).append(f"{edit.text}  # {edit.why}\n")
    return "\n".join(f"# {_TITLES[kind]}\n{''.join(lines[kind])}" for kind in _TITLES if kind in lines)
