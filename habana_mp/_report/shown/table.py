"""A report for the terminal: a headline, the advice, the ops that cost most casts, and the first of each finding.

Names are shown as text, never as markup of rich, and without control characters, which would reach the terminal.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from habana_mp._policy.folder import presets
from habana_mp._report import sums
from habana_mp._report.added import added, grouped
from habana_mp._report.data import CompiledGraph, NeverSeen, PingPong, Rank, Recast, Report
from habana_mp._report.findings.beginning import how_to_try
from habana_mp._report.findings.preset_errors import foretold, invitation
from habana_mp._report.findings.unknown import OUTSIDE, is_outside, no_op, why_not_all
from habana_mp._report.numbers import change_of, local_error, share, shares_known, with_values
from habana_mp._show import units
from habana_mp._show.units import counted, printable

_OPS = 10
_LINES = 5
# From these widths on there is room for all columns of the op table, and for those that 80 columns hold.
_WIDE, _MIDDLE = 100, 64
_STYLES = {"bfloat16": "blue", "float16": "cyan", "float32": "yellow"}


def table(report: Report) -> RenderableType:
    """What ``Console().print`` shows of a report, as wide as the console."""
    return _Report(report)


def text(report: Report) -> str:
    """The same as plain text, as wide as the terminal, or 80 columns where there is none."""
    shown = io.StringIO()
    Console(file=shown, force_terminal=False, color_system=None).print(table(report))
    return "\n".join(line.rstrip() for line in shown.getvalue().splitlines())


_OF_PRESETS = re.compile(rf", lists/({'|'.join(map(re.escape, presets()))})/\w+\.txt")


class _Report:
    def __init__(self, report: Report) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report, width = self._report, options.max_width
        wide = width >= _WIDE
        yield _headline(report)
        parts = [_advice(report)] if report.advice else []
        if report.rows:
            parts.append(_ops(report, width))
        parts += [
            _section(title, rows, numbers)
            for title, rows, numbers in (
                ("Compiled", [_compiled(each) for each in report.compiled], 2),
                ("Ranks", [_rank(each) for each in report.ranks or []], 5),
                ("Ping-pong", [_ping_pong(each, report, wide) for each in report.ping_pong], 3),
                ("Cast again", [_recast(each, wide) for each in report.recast], 2),
                ("Error not measured", [_unmeasured(each) for each in sums.unmeasured(report)], 1),
                ("Missed: held before convert", [_missed(each) for each in sums.missed(report)], 1),
                ("In no list", [_unlisted(each, report) for each in sums.unlisted(report)], 3),
                ("In your lists, never called", _never_seen(report.never_seen), 1),
            )
            if rows
        ]
        for part in parts:
            yield Text()
            yield part


def _headline(report: Report) -> Text:
    title = Text(printable(report.title) or "Cast report", style="bold")
    if not report.rows:
        return title.append(f": {no_op(report)[0]}", style="not bold")
    took = [units.time(seconds) for seconds in (report.cast_seconds, report.seconds)]
    part = units.share(report.cast_seconds, report.seconds)
    counts = [
        counted(report.casts, "cast"),
        f"{report.cache_hits:,} of them from the cache",
        f"{report.backward_casts:,} in backward",
        f"{units.size(report.cast_bytes)} cast",
    ]
    # One with names for modules is several: what holds in each of them.
    policies = dict.fromkeys(f"{each.front_end}: {each.name}" for each in report.policies)
    outside = [OUTSIDE] if is_outside(report) else []
    ranks = [counted(len(report.ranks), "rank")] if report.ranks else []
    facts = [*policies, *outside, *ranks, f"torch {report.torch}"]
    return (
        title.append(f": {took[0]} of {took[1]} in casts, {part}\n", style="not bold")
        .append(", ".join(counts) + "\n", style="not bold")
        .append(printable(", ".join(facts)), style="not bold dim")
        .append(_under_presets(report), style="not bold")
    )


def _under_presets(report: Report) -> str:
    """How far each loss is off, and how far it would be: a line each, where that is known, or how to know it."""
    lines = []
    for each in foretold(report):
        under = ", ".join(f"{name} {error:.2g}" for name, error in each.presets.items())
        error = f"error of {each.what} {each.error:.2g} {each.exact}" + (f", {each.without}" if each.without else "")
        lines.append(error + (f"; foretold: {under}" if under else ""))
    if report.low_dtype and (why := why_not_all(report)):
        lines.append(f"error of the loss: not known; {why[0]}")
    return "".join(f"\n{printable(line)}" for line in lines or [invitation(report)] if line)


def _advice(report: Report) -> RenderableType:
    lines = Table.grid(padding=(0, 1))
    lines.add_column(style="bold")
    lines.add_column()
    for number, each in enumerate(report.advice, start=1):
        text = Text(printable(each.text), style="bold")
        lines.add_row(f"{number}.", text.append("\n" + printable(each.evidence), style="not bold dim"))
    return Group(*_to_take(report), lines)


def _to_take(report: Report) -> Iterator[Text]:
    """Which edits to take, what they leave, and how to try them."""
    if report.to_take:
        yield Text(printable(report.to_take.text), style="bold")
        if report.to_take.edits:
            yield Text(printable(how_to_try(report, report.to_take.edits)), style="dim")
        yield Text()


def _ops(report: Report, width: int) -> RenderableType:
    found = sorted(sums.by_op(report.rows), key=_order(report))
    wide = width >= _WIDE
    number = {"justify": "right", "no_wrap": True}
    # The width from which on a column is there, its title, how it is set, and what an op has in it.
    columns: list[tuple[int, str, dict[str, Any], Callable[[sums.OpSum], Text | str]]] = [
        (0, "op", {"max_width": 30 if wide else 18}, lambda each: _cut(each.op, style="bold")),
        (_MIDDLE, "decision", {"max_width": 24 if wide else 11}, lambda each: _cut(", ".join(each.decisions))),
        (_MIDDLE, "calls", number, lambda each: f"{each.calls:,}"),
        (0, "casts", number, lambda each: _number(f"{each.casts.total():,}", each.casts.total())),
        (0, "from → to", {"no_wrap": True}, lambda each: _pairs(each, wide)),
        (_MIDDLE, "cached", number, lambda each: _number(f"{each.cached:,}", each.cached)),
        (
            0,
            "cast time" if wide else "in casts",
            number,
            lambda each: _number(units.time(each.cast_seconds), each.cast_seconds),
        ),
        (
            _MIDDLE,
            "share",
            number,
            lambda each: _number(units.share(each.cast_seconds, report.seconds), each.cast_seconds),
        ),
        (_WIDE, "op time", number, lambda each: units.time(each.seconds)),
        *_error_columns(report, number),
        # Op and decision are in the line already: the place in the list is left of a rule.
        (
            _WIDE,
            "rule",
            {"style": "dim"},
            lambda each: _cut("; ".join(rule.partition(", ")[2] or rule for rule in each.rules)),
        ),
    ]
    made = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="bold")
    shown = [column for column in columns if column[0] <= width]
    for _, title, how, _ in shown:
        made.add_column(title, **how)
    for each in found[:_OPS]:
        made.add_row(*(cell(each) for *_, cell in shown))
    return Group(made, *_more(len(found) - _OPS, "op"))


def _order(report: Report) -> Callable[[sums.OpSum], tuple[int, float]]:
    """The ops that lose most numbers come first, then those that make most of the error: the table may be too short for the others."""
    size = change_of(report.rows)
    lost: Counter[str] = Counter()
    made: dict[str, float] = {}
    for row in report.rows:
        lost[row.op] += row.measured.ran.lost
        made[row.op] = made.get(row.op, 0.0) + size(row)
    return lambda each: (-lost[each.op], -made.get(each.op, 0.0))


def _error_columns(
    report: Report, number: dict[str, Any]
) -> list[tuple[int, str, dict[str, Any], Callable[[sums.OpSum], Text | str]]]:
    """Of a report with values: the error of an op, red where numbers are lost, and its share of the error of the loss if that is known."""
    if not report.low_dtype:
        return []
    rows = {group[0].op: group for group in grouped(with_values(report.rows), lambda row: row.op)}
    unmeasured = {each.op for each in sums.unmeasured(report) if not each.backward}

    def error(each: sums.OpSum) -> Text | str:
        if each.op not in rows:
            return Text("not measured", style="dim") if each.op in unmeasured else ""
        found = local_error(added(row.measured.ran for row in rows[each.op]))
        if found.lost:
            return Text(f"{found.lost:,} not finite", style="bold red")
        return _number(f"{float(found):.2g}", float(found))

    def in_format(name: str, each: sums.OpSum) -> Text | str:
        measured = [found.error for row in rows.get(each.op, []) if (found := row.measured.in_format(name))]
        return _number(f"{float(local_error(added(measured))):.2g}", 1.0) if measured else ""

    def of_all(each: sums.OpSum) -> Text | str:
        part = share(report.rows, rows.get(each.op, []))
        return _number(units.share(part, 1.0), part)

    shares = [(_MIDDLE, "of all error", number, of_all)] if shares_known(report) else []
    formats = [(_WIDE, name, number, partial(in_format, name)) for name in report.formats or []]
    return [(_MIDDLE, "error", number, error), *formats, *shares]


def _pairs(each: sums.OpSum, wide: bool) -> Text:
    pairs = each.casts.most_common()
    shown = pairs if wide else pairs[:1]
    parts = [
        _path(pair).append(f" {count:,}" if len(pairs) > 1 and wide else "", style="default") for pair, count in shown
    ]
    return Text(", ").join(parts).append(f" +{len(pairs) - 1}" if len(shown) < len(pairs) else "")


def _rank(each: Rank) -> list[Any]:
    figures = [
        counted(each.casts, "cast"),
        f"{each.cache_hits:,} cached",
        f"{each.backward_casts:,} in backward",
    ]
    of = Text(f"of {units.time(each.seconds)}", style="dim")
    return [f"rank {each.rank}", *figures, units.time(each.cast_seconds), of]


def _compiled(each: CompiledGraph) -> list[Any]:
    """A graph, and the casts that each run of it makes."""
    casts = sum(cast.count for cast in each.casts)
    text = Text(printable(f"graph {each.graph}, {each.rounds}"), style="bold")
    if each.unrounded:
        text.append(f", {counted(each.unrounded, 'rounding')} may be left out", style="not bold")
    text.append(printable("".join(f"  {op}" for op in sums.cast_ops(each))), style="not bold")
    return [counted(each.calls, "run"), "casts unknown" if each.rounds == "unknown" else counted(casts, "cast"), text]


def _ping_pong(each: PingPong, report: Report, wide: bool) -> list[Any]:
    text = _path(each.path).append("  " + printable(" → ".join(op.op for op in each.ops)), style="bold")
    if wide:
        text.append(f"  from {printable(each.ops[0].module)}", style="dim")
    part = units.share(each.seconds, report.seconds)
    return [counted(each.count, "time"), units.time(each.seconds), part, text]


def _recast(each: Recast, wide: bool) -> list[Any]:
    text = _path((each.from_, each.to)).append(f"  {printable(each.tensor)}")
    if wide:
        text.append(printable(f"  for {', '.join(each.ops)}"), style="dim")
    return [f"{counted(each.times, 'time')}, {each.needed:,} needed", units.time(each.seconds), text]


def _unmeasured(each: sums.Unmeasured) -> list[Any]:
    where = " in backward" if each.backward else ""
    return [
        counted(each.calls, "call"),
        Text(printable(each.op), style="bold").append(f"{where}\n{each.why}", style="not bold"),
    ]


def _missed(each: sums.MissedOp) -> list[Any]:
    text = Text(printable(each.op), style="bold").append(f"  {printable(', '.join(each.held_by))}", style="not bold")
    return [counted(each.calls, "call"), text.append(f"  {printable(each.source)}", style="not bold dim")]


def _unlisted(each: sums.OpSum, report: Report) -> list[Any]:
    part = units.share(each.seconds, report.seconds)
    return [counted(each.calls, "call"), units.time(each.seconds), part, Text(printable(each.op))]


def _never_seen(entries: list[NeverSeen]) -> list[list[Any]]:
    """A line for each list. Names of presets are for models of all kinds, so they are on the page alone."""
    own = [each for each in entries if not _OF_PRESETS.search(each.rule)]
    lists = dict.fromkeys(each.list for each in own)
    return [[title, _cut(", ".join(each.op for each in own if each.list == title))] for title in lists]


def _section(title: str, rows: list[list[Any]], numbers: int) -> RenderableType:
    """A title and the first rows under it: figures to the right, then one Text, cut where the line ends."""
    made = Table.grid(padding=(0, 2))
    for _ in range(numbers):
        made.add_column(justify="right", no_wrap=True)
    made.add_column()
    for *figures, text in rows[:_LINES]:
        text.no_wrap, text.overflow = True, "ellipsis"
        made.add_row(*figures, text)
    return Group(Text(title, style="bold"), Padding(made, (0, 0, 0, 2)), *_more(len(rows) - _LINES))


def _more(count: int, noun: str = "") -> list[Text]:
    text = f"… and {counted(count, f'more {noun}')}" if noun else f"  … and {count:,} more"
    return [Text(text, style="dim")] if count > 0 else []


def _number(text: str, value: float) -> Text:
    return Text(text, style="" if value else "dim")


def _cut(text: str, style: str = "") -> Text:
    """One line, which is cut where the columns of figures beside it need the room: those never wrap."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def _path(dtypes: Iterable[str]) -> Text:
    return Text("→").join(Text(printable(units.short(each)), style=_STYLES.get(each, "")) for each in dtypes)
