"""``Tuned``: what a search has found, and why."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from habana_mp._core import Entry
from habana_mp._evidence.tune.parts import Part
from habana_mp._evidence.tune.turns import Point
from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.edit import LISTS
from habana_mp._policy.folder import DESCRIPTION, read_description, write_folder
from habana_mp._policy.names import names_of
from habana_mp._policy.policy import Policy
from habana_mp._policy.read_file import shown
from habana_mp._report.edits.edits import Edit
from habana_mp._report.formats import FORMATS
from habana_mp._show.short import Short
from habana_mp._show.units import apart, printable, size, time
from habana_mp._show.writing import Document, plain

_MAKER = "hmp.tune from"  # how the source of a policy begins that a search has written


@dataclass(frozen=True, repr=False)
class TunedPart(Short):
    """A ``Part`` of the step, with its list.

    Attributes:
        part: the part.
        list: its list in the policy that was found; "rest" if it is in none.
        saved: the time that its low dtype saves in a step, in seconds, without casts around it; None with ``cost="numbers"``,
            and where the times of single ops do not fit the time of a step.

    Example:
        >>> found = hmp.tune(lambda: model(x), 1e-2, cost="numbers")
        >>> for part in found.parts:
        ...     print(part.name, part.list)
    """

    part: Part
    list: str
    saved: float | None

    @property
    def name(self) -> str:
        return self.part.name

    def _line(self) -> str:
        return f"{self.name}, {self.list}, error {self.part.error:.2g}"


@dataclass(frozen=True, repr=False)
class Tuned(Short, Document):
    """The result of ``tune``. ``print`` shows the ops that moved, and a table of the policies that ran.

    Attributes:
        policy: the fastest policy within the budget. Among those that are as fast within ``noise``, it is float32 throughout, or has the fewest
            changes of ``start``.
        start: the policy that the search started from.
        budget: the largest accepted error.
        error: the error of ``policy`` on the step.
        check_error: its error on the step given as ``check``, or None.
        runs: how many runs there were. Each calls a step once, or several times to time it.
        calls: how often this search called the steps; what was taken from a file to resume from is not counted, so ``to_dict`` leaves it out.
        most_runs: the largest number of runs that was possible.
        cost: "seconds" or "numbers".
        points: the policies that ran.
        parts: each op of the search with its list, in the order of the calls.
        chosen: the point of ``policy``.
        float32_seconds: the time of the step in float32, without a policy if ``cost`` is "seconds".
        noise: by how much the times of policies that were timed in turns differ by chance, in seconds, and at least 2 % of the shortest; None
            with ``cost="numbers"``.

    Example:
        >>> found = hmp.tune(lambda: model(x), 1e-2, cost="numbers")
        >>> found.error <= found.budget
        True
    """

    policy: Policy
    start: Policy
    budget: float
    error: float
    check_error: float | None
    runs: int
    calls: int
    most_runs: int
    cost: str
    points: tuple[Point, ...]
    parts: tuple[TunedPart, ...]
    chosen: Point
    float32_seconds: float
    noise: float | None
    _edits: tuple[Edit, ...]  # that the report of the start speaks for
    _may_try_8_bits: bool  # inference on a CPU, without a list for 8 bits

    @property
    def front(self) -> tuple[Point, ...]:
        """The points that no other point beats in error, time and size of results at once, the fastest first.

        If a size is not known, only error and time count.
        """

        def beats(one: Point, other: Point) -> bool:
            pairs = [(one.error, other.error), (one.seconds, other.seconds)]
            if one.result_bytes is not None and other.result_bytes is not None:
                pairs.append((one.result_bytes, other.result_bytes))
            return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

        best = (point for point in self.points if not any(beats(other, point) for other in self.points))
        return tuple(sorted(best, key=lambda point: point.seconds))

    def explain(self, op: str) -> str:
        """Return why an op is in its list, with one line for each part of the step that runs this op.

        Raises:
            TypeError: ``op`` is not a string.
            ValueError: there is no such op, or the search did not decide it.
        """
        names = names_of(op)
        found = [f"{part.name}: {part.list}; {self.why(part)}" for part in self.parts if part.part.op in names]
        if not found:
            decided = ", ".join(sorted({part.part.op for part in self.parts}))
            raise ValueError(f"the search did not decide {op!r}. It decided {decided}")
        return "\n".join(found)

    def diff(self, other: Policy | str | os.PathLike[str]) -> PolicyDiff:
        """Return the rules that differ between another policy and this one. ``other`` is a ``Policy``, or its name or path."""
        return PolicyDiff.between(other if isinstance(other, Policy) else Policy.load(other), self.policy)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the policy as a folder, which ``Policy.load``, ``convert``, ``autocast``, ``set_policies`` and ``--policy`` accept. It has the name
        of the folder.

        Each line that the search decided has its evidence as a comment. The policy of an earlier search in this folder is replaced, with
        what you have changed in its lists.

        Raises:
            OSError: the folder cannot be written, or has files in it that no search has written.
            ValueError: the policy.toml in the folder is not one.
        """
        target = Path(folder)
        refuse_to_replace(target)
        target.mkdir(parents=True, exist_ok=True)
        named = self.policy._core.replaced(name=printable(target.resolve().name), entries=[*self._with_evidence()])
        error = f"error {self._beside(self.error)} of {self.budget:g}"
        write_folder(target, named, f"{_MAKER} {self.start.name}, {error}")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as values for JSON. Infinite errors are None."""
        values: dict[str, Any] = {
            "policy": str(self.policy),
            "start": str(self.start),
            "budget": self.budget,
            "error": self.error,
            "check_error": self.check_error,
            "runs": self.runs,
            "most_runs": self.most_runs,
            "cost": self.cost,
            "noise": self.noise,
            "chosen": self.chosen.name,
            "points": [{**vars(point), "policy": str(point.policy)} for point in self.points],
            "parts": [
                {
                    "name": each.name,
                    "list": each.list,
                    "error": each.part.error,
                    "lost": each.part.error == math.inf,
                    "saved": each.saved,
                    "numbers": each.part.numbers,
                }
                for each in self.parts
            ],
        }
        found: dict[str, Any] = plain(values)
        return found

    def _page(self) -> str:
        from habana_mp._evidence.tune.shown.page import page

        return page(self)

    def __str__(self) -> str:
        from habana_mp._evidence.tune.shown.text import text

        return text(self)

    def _line(self) -> str:
        return f"{self.chosen.name} from {self.start.name}, error {self._beside(self.error)} of {self.budget:g}, {self.runs} runs"

    def _moved(self) -> list[tuple[str, str, str, str]]:
        """The names that are in another list than in the start: the name, the list before and the list now, and why."""
        return [
            (name, before, after, self._why_moved(name, after))
            for name, (before, after) in self.diff(self.start).ops.items()
        ]

    def _why_moved(self, name: str, after: str) -> str:
        parts = [each for each in self.parts if name in (each.name, each.part.op) and each.list == after]
        if parts:
            return self.why(parts[0]) if len(parts) == 1 else self._evidence(parts)
        return self._why_edited(f"+{name}:{after}")  # what ran in float32 under the start is no part

    def _why_edited(self, text: str) -> str:
        """Of an edit of the start, by its text."""
        return next((edit.why for edit in self._edits if edit.text == text), "")

    def _beside(self, error: float) -> str:
        """Of an error: as many figures as show on which side of the budget it is."""
        return apart(error, self.budget)

    def _with_evidence(self) -> Iterator[Entry]:
        """The entries of the policy: one for an op in the whole model has the sum of what no entry for modules has."""
        # Of what the policy itself says: where the start was chosen its lines stay as they are.
        decided = [entry.replaced(list="") for entry in self.policy._core.entries if entry.list in ("lower", "fp32")]
        for entry in self.policy._core.entries:
            own = entry.replaced(list="")
            known = [
                each
                for each in self.parts
                if each.part._entry == own or (each.part.op == str(own) and each.part._entry not in decided)
            ]
            text = self._evidence(known) if known and own in decided else ""
            if entry.list in FORMATS:
                text = self._why_edited(f"+{own}:{entry.list}")
            yield entry.replaced(comment=text)

    def _evidence(self, parts: list[TunedPart]) -> str:
        """What one run in float32 said of an op in the low dtype, for people."""
        total = math.sqrt(sum(each.part.error**2 for each in parts))
        more = ""
        if any(each.part.hidden for each in parts):
            more = ", or more, as some of its results get no gradient (under no_grad, none does)"
        error = "loses numbers (NaN or infinity)" if math.isinf(total) else f"predicted error {total:.2g}{more}"
        saved = [each.saved for each in parts if each.saved is not None]
        gain = ""
        if saved:
            gain = f", {'saves' if sum(saved) > 0 else 'costs'} {time(abs(sum(saved)))} without casts around it"
        elif self.cost == "numbers":
            gain = f", saves {size(2.0 * sum(each.part.numbers for each in parts))} of results"
        return f"in {self.policy._core.low_dtype}: {error}{gain}"

    def why(self, each: TunedPart) -> str:
        """Return why one of ``parts`` is in its list, without its name."""
        if each.list in FORMATS:
            return self._why_edited(f"+{each.name}:{each.list}")
        error, known = each.part.error, self._evidence([each])
        if each.list == "lower":
            reason = "within the budget"
        elif each.list != "fp32":
            reason = f"as {self.start.name} has it"
        elif error > self.budget:
            reason = "alone above the budget"
        elif each.saved is not None and each.saved <= 0:
            reason = "float32 is no slower"
        elif self.points[0].error <= self.budget:  # with all parts in the low dtype
            reason = "runs of the step were no slower with it in float32"
        else:
            reason = (
                "alone within the budget, but not beside the others in the low dtype; or it is between ops in float32"
            )
        return f"{reason} ({known})"


def refuse_to_replace(folder: Path) -> None:
    """Raise FileExistsError for a folder with files that no search has written, such as a policy that somebody made by hand, or edits of its
    lists for a version of torch, which would be edits of the new ones.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not names:
        return
    others = sorted(names - {DESCRIPTION, *(f"{title}.txt" for title in LISTS)})
    if others or DESCRIPTION not in names:
        first = f" ({shown(others[0])})" if others else ""
        why = f"has files that do not belong to a policy of hmp.tune{first}. Use a new folder"
    elif not read_description(folder / DESCRIPTION).get("source", "").startswith(_MAKER):
        why = "has a policy that hmp.tune did not make. Use a new folder"
    else:
        return
    raise FileExistsError(errno.EEXIST, why, str(folder))
