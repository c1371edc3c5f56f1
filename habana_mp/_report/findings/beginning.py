"""The beginning of the sequence of edits that is worth taking, what it leaves, and how to try it: the head of the advice."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from habana_mp._policy.folder import presets
from habana_mp._policy.policy import Policy
from habana_mp._report.data import Report
from habana_mp._report.findings.edits import Edit
from habana_mp._report.numbers import Objective
from habana_mp._report.sums import seconds_of_steps
from habana_mp._show.units import counted, share

_GAIN = 0.1  # of the error that is left, which each edit takes away on average that is worth a line in a list


@dataclass(frozen=True)
class Beginning:
    """Edits to take together. ``step`` is the time that ``seconds`` is a part of, ``what`` the loss or the outputs."""

    edits: tuple[Edit, ...]
    error: float | None  # now; None where it is not known
    left: float | None  # with the edits
    what: str
    step: float

    @property
    def seconds(self) -> float:
        return sum(edit.seconds for edit in self.edits)

    def __str__(self) -> str:
        """``+mul:fp32 leaves 0.0004 of 0.0020, the error of the loss; +3 % a step``."""
        effects = [*self._effects()]
        if not effects:
            return f"no edit takes away {share(_GAIN, 1.0)} of the error"
        names = self.edits[0].text if len(self.edits) == 1 else f"these {len(self.edits)} edits"
        return f"{names} {' and '.join(effects)}; {self._time()}"

    def _effects(self) -> Iterator[str]:
        one = len(self.edits) == 1
        if lost := sum(edit.lost for edit in self.edits):
            yield f"{'keeps' if one else 'keep'} {counted(lost, 'number')} finite"
        if self.error is not None and self.left is not None and self.left < self.error:
            yield f"{'leaves' if one else 'leave'} {self.left:.2g} of {self.error:.2g}, the error of {self.what}"

    def _time(self) -> str:
        if not self.seconds or not self.step:
            return "no time"
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
    now = objective.error() if objective.known else None
    left, taken = now, 0
    for number, edit in enumerate(wide, start=1):
        after = edit.error_after
        if left is not None and after is not None and after <= left * (1 - _GAIN) ** (number - taken):
            left, taken = after, number
    return Beginning((*lost, *wide[:taken]), now, left if taken else None, objective.what, seconds_of_steps(report))


def how_to_try(report: Report, edits: Sequence[Edit]) -> str:
    """A command line if the report is of a script whose policy it can name, else a line of Python."""
    policies = {(each.name, each.text): each for each in report.policies}
    (name, text), own = next(iter(policies.items()), (("", ""), None))
    is_preset = len(policies) == 1 and name in presets() and text == str(Policy.load(name))
    is_script = report.title.endswith(".py") and own is not None and own.front_end == "convert"
    if is_preset and is_script:
        options = [option for edit in edits for option in ("--edit", edit.text)]
        return shlex.join(["habana-mp", "report", "--values", "--policy", name, *options, report.title])
    policy = f"hmp.Policy.load({name!r})" if is_preset else "policy"
    return f"policy = {policy}.with_edits({', '.join(repr(edit.text) for edit in edits)})"
