"""``report``: which op ran where, in which precision, by whose rule, and what its casts cost.

The counting is in src/report/report.cpp, a listener of src/watch/observer.cpp.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import habana_mp._core as _core
from habana_mp._autocast.regions import region_policy
from habana_mp._policy.read_file import read_text, shown
from habana_mp._ranks.rank import is_joined
from habana_mp._report.counted import report_of_counts
from habana_mp._report.data import Advice, Cast, Report
from habana_mp._report.findings.advice import with_advice
from habana_mp._report.findings.asked import asked_casts, dtype_name
from habana_mp._report.findings.diff import ReportDiff
from habana_mp._report.findings.unknown import OUTSIDE, is_outside
from habana_mp._report.form import MOST_BYTES, read_report
from habana_mp._report.formats import checked_formats
from habana_mp._report.measured import MeasuredReport
from habana_mp._report.merge import merged
from habana_mp._report.schedule import Schedule
from habana_mp._report.shown.exports import chrome_trace, scalars
from habana_mp._report.shown.op_calls import OpCalls, op_calls
from habana_mp._scope import in_force
from habana_mp._show.short import Short, brief
from habana_mp._show.units import counted
from habana_mp._show.writing import Document, written
from habana_mp._watch.modules import unwatch_modules, watch_modules

if TYPE_CHECKING:
    from typing_extensions import Self


class CastReport(Short, Document, MeasuredReport):
    """The casts in a ``with hmp.report()`` block, on all threads. ``report`` and ``CastReport.load`` make it.

    You can read the counts inside the block, too. After the block they do not change. ``print`` shows a table, and notebooks show the
    page of ``to_html``.

    Example:
        >>> with hmp.autocast("cpu"), hmp.report() as r:
        ...     y = model(x)
        >>> r.casts("linear", to="bfloat16", module="lm_head")
        3
    """

    def __init__(
        self,
        values: bool | str = False,
        *,
        wait: int = 0,
        warmup: int = 0,
        active: int | None = None,
        own_thread: bool = False,
        formats: Iterable[str] = (),
    ) -> None:
        if values not in (False, True, "errors"):
            raise ValueError(f'values must be True, False or "errors", not {brief(values)}')
        self._formats = checked_formats(formats)
        if self._formats and values is not True:
            raise ValueError(f"formats needs values=True, not {brief(values)}")
        self._measures = values
        self._own_thread = own_thread  # it counts what this thread and its backward passes run, and nothing else
        self._schedule = Schedule(wait, warmup, active)
        self._open: _core.Report | None = None
        self._low = ""
        self._began = 0.0
        self._values: Report | None = None
        self._advised: Report | None = None
        self._entered = False
        self.title = ""

    def __enter__(self) -> Self:
        if self._entered or self._values is not None:
            raise RuntimeError("a report is for one with block. Call hmp.report() again for another one")
        self._entered = True
        if self._schedule.phase != "wait":
            self._start()
        self._schedule.begin()
        return self

    def _start(self) -> None:
        watch_modules()
        try:
            self._began = _core.step_clock()
            policy = region_policy()[0] or in_force.policy
            self._low = "bfloat16" if policy is None else dtype_name(policy.low_dtype)
            self._projected_squares = 0.0
            self._children_before = _core.casts_of_children()
            self._open = _core.open_report(
                bool(self._measures), self._measures is True, self._low, self._own_thread, self._formats
            )
        except BaseException:  # where another probe looks, or an interrupt comes
            unwatch_modules()
            raise

    def _stop(self) -> Report:
        seconds = _core.step_clock() - self._began
        opened, self._open = self._open, None
        assert opened is not None  # noqa: S101 - who calls has asked
        try:
            return self._report_of(_core.close_report(opened), seconds)
        finally:
            unwatch_modules()

    def step(self) -> None:
        """End a step of the training. ``wait``, ``warmup`` and ``active`` count these steps, and ``to_dict()["steps"]`` has their times.

        Raises:
            RuntimeError: the call is outside the with block.
        """
        if not self._entered:
            raise RuntimeError("call step inside the with block of the report")
        before = self._schedule.phase
        self._schedule.step()
        now = self._schedule.phase
        if now != before:
            if self._open is not None:
                counted = self._stop()
                self._values = counted if now == "done" else None
            if now != "done":
                self._start()
        self._schedule.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._entered:
            raise RuntimeError("the report was never entered")
        self._entered = False
        if self._open is not None:
            counted = self._stop()
            self._values = counted if self._schedule.phase == "active" else None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, by ``copy`` or ``pickle``, of a report that is open is what it has counted by then."""
        return {
            **self.__dict__,
            "_open": None,
            "_entered": False,
            "_values": self._values if self._open is None else self._data(),
        }

    def casts(self, op: str | None = None, *, to: torch.dtype | str | None = None, module: str | None = None) -> int:
        """Return how many tensors were cast for an op in forward passes.

        Copies from the weight cache count too, and ``cache_hits`` counts them alone, so the number does not depend on what ran before. A
        tensor that a call has twice counts once.

        Args:
            op: any name of an op, by default all ops. "matmul" also counts "__matmul__", and "add_" also counts "__iadd__", but not "add".
            to: a dtype or its name, by default any.
            module: a path such as "encoder.layers.0", with or without the class of the root before it ("Net: encoder"). Modules below it
                count too, and ``*`` matches one name of the path. "" selects calls outside any module.

        Raises:
            TypeError: an argument has a wrong type.
            ValueError: an argument is not accepted; or the op was not called in the block, or no op ran in the module. The message has
                the nearest names that the report has.
            RuntimeError: the report was never entered.
        """
        return sum(cast.count for cast in self._asked(op, to, module))

    def cache_hits(
        self, op: str | None = None, *, to: torch.dtype | str | None = None, module: str | None = None
    ) -> int:
        """Return how many of ``casts`` were copies that the weight cache had already. They cost a look-up. Arguments and errors as for ``casts``."""
        return sum(cast.cached for cast in self._asked(op, to, module))

    def backward_casts(
        self, op: str | None = None, *, to: torch.dtype | str | None = None, module: str | None = None
    ) -> int:
        """Return how many gradients were cast back in backward passes. ``op``, ``to`` and ``module`` are those of the forward cast.

        Arguments and errors are the same as for ``casts``.
        """
        return sum(cast.backward.count for cast in self._asked(op, to, module))

    def _asked(self, op: str | None, to: torch.dtype | str | None, module: str | None) -> list[Cast]:
        return asked_casts(self._data(), op, to, module)

    def _is_measuring(self) -> bool:
        return self._open is not None and bool(self._measures)

    @property
    def rows(self) -> tuple[OpCalls, ...]:
        """The rows of the report: each is an op in a module under one decision, in the order of the first calls."""
        return tuple(op_calls(self._data()))

    @property
    def advice(self) -> tuple[Advice, ...]:
        """What to do first: at most five lines with their evidence. Mistakes and lost numbers come first, then edits, then what costs most."""
        return tuple(self._whole().advice)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as plain values, as ``to_json`` writes them: docs/report-json.md has all keys. Times are in seconds, sizes in
        bytes.

        Raises:
            RuntimeError: the report was never entered.
        """
        return self._whole().to_dict()

    def _data(self) -> Report:
        if self._values is not None:
            return self._values
        if self._open is None and (self._entered or self._schedule.is_set):
            raise RuntimeError(self._schedule.missing)
        if self._open is None:
            raise RuntimeError("nothing has been counted yet: enter the report with `with`")
        return self._report_of(_core.report_values(self._open), _core.step_clock() - self._began)

    def _whole(self) -> Report:
        """With the advice, which takes longer than to count: it is found when it is asked for."""
        if self._values is None:
            return with_advice(self._data())
        if self._advised is None:
            self._advised = with_advice(self._values)
        return self._advised

    def _page(self) -> str:
        from habana_mp._report.shown.page import page

        return page(self._whole())

    def to_chrome_trace(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the casts in time as JSON for chrome://tracing and Perfetto.

        Args:
            path: a file that gets the text, too.

        Raises:
            OSError: the file cannot be written.
            RuntimeError: the report was never entered.
        """
        return written(json.dumps(chrome_trace(self._data())), path)

    def to_tensorboard(self, writer: Any, step: int | None = None) -> None:
        """Write counts, times and errors as scalars below "habana_mp/".

        Args:
            writer: a ``torch.utils.tensorboard.SummaryWriter``, or another object with ``add_scalar``.
            step: the step of the scalars.

        Raises:
            TypeError: the writer has no ``add_scalar``.
            RuntimeError: the report was never entered.
        """
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                f"writer must have add_scalar, as torch.utils.tensorboard.SummaryWriter has, not {brief(writer)}"
            )
        for name, value in scalars(self._data()).items():
            writer.add_scalar(f"habana_mp/{name}", value, step)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CastReport:
        """Read a report that ``to_json`` has written.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file has no report, or one of another version. The message has the file and what is wrong in it.
        """
        text = read_text(path, MOST_BYTES)
        try:
            found = cls._of(read_report(text))
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {error}") from None
        found._advised = found._values
        return found

    @classmethod
    def merged(cls, reports: Iterable[CastReport]) -> CastReport:
        """Merge the reports of several ranks into one. Counts, sizes and times are sums, also the time of the block.

        ``to_dict()["ranks"]`` has the sums of each rank, and ``["uneven"]`` has the ops that not all ranks cast alike. The timeline is that of
        the first report. If the reports have different ranks, they keep their numbers; otherwise the place of a report is its rank.

        Raises:
            TypeError: one of the arguments is not a report.
            ValueError: there are no reports.
            RuntimeError: one of the reports was never entered.

        Example:
            >>> with hmp.report() as r:
            ...     y = model(x)
            >>> text = r.to_json("casts-0.json")
            >>> whole = hmp.CastReport.merged([hmp.CastReport.load("casts-0.json"), r])
        """
        several = list(reports)
        if wrong := [each for each in several if not isinstance(each, CastReport)]:
            raise TypeError(f"merged takes reports, not {wrong[0]!r}")
        if not several:
            raise ValueError("there is no report to merge")
        whole = merged([each._data() for each in several])
        return cls._of(whole)

    def gather(self, group: dist.ProcessGroup | None = None) -> CastReport | None:
        """Merge the reports of all ranks of a process group. All ranks have to call it.

        Returns:
            The merged report on the first rank of the group, and None on the others. Without a process group, the report of this process.

        Raises:
            RuntimeError: the report was never entered.
        """
        if not is_joined():
            return CastReport.merged([self])
        first = dist.get_group_rank(group, dist.get_rank()) == 0 if group is not None else dist.get_rank() == 0
        gathered: list[Any] | None = [None] * dist.get_world_size(group) if first else None
        dist.gather_object(self._data(), gathered, group=group, group_dst=0)
        return None if gathered is None else CastReport.merged(map(CastReport._of, gathered))

    @classmethod
    def _of(cls, values: Report) -> CastReport:
        made = cls()
        made._values = values
        made.title = values.title
        return made

    def diff(self, other: CastReport) -> ReportDiff:
        """Return what differs in ``other``: casts by op and dtype, and errors, of reports with values. ``print`` shows a table. The
        result is false if no casts differ.

        Raises:
            TypeError: ``other`` is not a report.
            RuntimeError: one of the two reports was never entered.
        """
        if not isinstance(other, CastReport):
            raise TypeError(f"diff takes another report, not {brief(other)}")
        return ReportDiff.between(self._data(), other._data())

    def __rich__(self) -> Any:
        from habana_mp._report.shown.table import table

        return table(self._whole())

    def __str__(self) -> str:
        from habana_mp._report.shown.table import text

        return text(self._whole())

    def _line(self) -> str:
        if self._open is None and self._values is None:
            return "not begun"
        values = self._data()
        casts = f"{counted(values.casts, 'cast')}, {values.cache_hits:,} of them from the weight cache"
        outside = f", {OUTSIDE}" if is_outside(values) else ""
        return f"{casts}, {counted(len(values.rows), 'row')}{outside}"

    def _report_of(self, counted: dict[str, Any], seconds: float) -> Report:
        return report_of_counts(
            counted,
            seconds,
            title=self.title,
            steps=[*self._schedule.seconds],
            low_dtype=self._low if self._measures else "",
            projected_squares=self._projected_squares,
            # In a child that was forked in the block the count began anew.
            forked_casts=max(0, _core.casts_of_children() - self._children_before),
            formats=self._formats,
        )


def report(
    *,
    values: bool | str = False,
    formats: Iterable[str] = (),
    wait: int = 0,
    warmup: int = 0,
    active: int | None = None,
) -> CastReport:
    """Count every cast of ``convert`` and ``autocast`` while a ``with`` block runs, with its reason.

    Reports nest, and each sees all threads. Of code that ``torch.compile`` has compiled, a report has the graphs and not the ops. While it is
    open, small ops run up to twice as long. Without an open report nothing is slower.

    Args:
        values: True also measures how much the casts change the numbers. Each op then runs once more: in float32 if it ran in a low
            dtype, and in the low dtype of the policy if it ran in float32. If the block runs a backward pass, the gradients show which op
            makes which part of the error of the loss. "errors" leaves out the second kind and takes less time. Weights, gradients, random
            numbers and running statistics stay the same as without the report.
        formats: "weight_int8", "int8" or both, with ``values=True``: each call that could run so on the CPU also runs in these lists of ops
            in 8 bits, as in inference.
        wait: the number of steps to skip at the beginning. ``r.step()`` ends a step.
        warmup: the number of steps after these that run with the report open and are not counted.
        active: the number of steps after these that are counted. The default is all.

    Returns:
        A ``CastReport``, for a ``with`` block.

    Raises:
        TypeError, ValueError: ``values``, ``formats`` or a number of steps is not accepted.

    Example:
        >>> with hmp.report() as r:
        ...     loss = model(x).sum()
        ...     loss.backward()
        >>> print(r)

    See Also:
        explain, draw
    """
    return CastReport(values, formats=formats, wait=wait, warmup=warmup, active=active)
