"""What to do first after a report, and the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import UNSET, structs

from habana_mp._report.added import added, grouped
from habana_mp._report.data import Advice, Report, Row, ToTake, Uneven
from habana_mp._report.edits.edits import Edit, edits
from habana_mp._report.errors.objective import Objective
from habana_mp._report.findings.beginning import Beginning, beginning
from habana_mp._report.findings.unknown import ON_THREAD, is_outside, may_flip, no_edit
from habana_mp._show.module_path import common
from habana_mp._show.units import counted, share

_MOST = 5
_MOST_COSTS = 2  # lines, where edits would fill all
_MOST_UNEVEN = 3  # ops
_MOST_RANKS = 8
_WORTH = 0.005  # of the time of all ops: less is not worth a line
_MANY_SUMS = 64
_ABSORBED = 0.2  # of the sums: so many leave the larger number as it is
_MOST_CHOICES = 2
_LONG = 0.05  # an op that no list names is, from here on


def with_advice(report: Report) -> Report:
    found = edits(report) if report.low_dtype else []
    head = beginning(report, found)
    to_take = UNSET if head is None else ToTake([edit.text for edit in head.edits], str(head))
    return structs.replace(report, advice=_advice(report, found, head), to_take=to_take)


def _advice(report: Report, found: list[Edit], head: Beginning | None) -> list[Advice]:
    """At most five lines: what no row has, of compiled code and of forked processes, or has no values, of other threads; ops that lose numbers; ops that a conversion missed, or that did not run in the 8 bits of their list, and ranks that cast
    otherwise than others, which are mistakes; edits for accuracy, all of those to take together if they fit; then what costs most. How many casts
    an op has is no advice: the tables have it.

    Shares are of the time of the block, as in the tables; what is worth a line is measured by the time of all ops, backward passes
    included, since a block may read data or import for minutes.
    """
    whole = report.op_seconds + report.backward_seconds
    costs = sorted(
        [*_of_ping_pong(report), *_of_recast(report), *_of_unlisted(report, whole)], key=lambda line: -line[0]
    )
    worth = [line for seconds, line in costs if seconds >= _WORTH * whole]
    lost = [of_edit(each) for each in found if each.lost]
    mistakes = [
        *lost,
        *_of_missed(report),
        *_of_not_in_8_bits(report),
        *_of_uneven(report),
        *_of_absorbed(report),
        *_of_choices(report),
    ]
    taken = len(mistakes) + len(head.edits) - len(lost) if head else 0  # its first edits are those of ``lost``
    room = _MOST - min(_MOST_COSTS, len(worth))
    first = [*mistakes, *_of_errors(report, found)][: max(room, taken if taken <= _MOST else 0)]
    return [*_of_compiled(report), *_of_forked(report), *_of_threads(report), *first, *worth][:_MOST]


_ONE_FLIP = 0.5

_Line = tuple[float, Advice]  # the seconds that it is about


def _of_compiled(report: Report) -> Iterator[Advice]:
    """One line on what no row has."""
    if report.compiled:
        calls = sum(graph.calls for graph in report.compiled)
        known = all(graph.rounds != "unknown" for graph in report.compiled)
        casts = counted(sum(cast.count for graph in report.compiled for cast in graph.casts), "cast")
        yield Advice(
            'compiled code ran, and its ops are no rows here: to see them, run the step under torch.compiler.set_stance("force_eager")',
            f"{counted(len(report.compiled), 'graph')} of torch.compile with {casts if known else 'casts that are not known'} ran {counted(calls, 'time')}",
        )


def _of_threads(report: Report) -> Iterator[Advice]:
    """One line where a half of the calls or more is not measured for it."""
    calls = sum((row.unmeasured or {}).get("thread", 0) for row in report.rows)
    if calls and calls >= sum(row.measured.calls for row in report.rows):
        yield Advice(
            f"most errors are not measured: {ON_THREAD}",
            f"{counted(calls, 'call')} ran on other threads than the one that opened the report",
        )


def _of_forked(report: Report) -> Iterator[Advice]:
    if report.forked_casts:
        yield Advice(
            "forked processes cast, too, and their ops are no rows here: to see them, use a DataLoader with num_workers=0",
            f"{counted(report.forked_casts, 'cast')} in workers; hmp.disable_casts() in the data set leaves its ops without casts",
        )


def _of_choices(report: Report) -> Iterator[Advice]:
    """Ops that take others of their numbers, because these are off."""
    if report.choices_worth:
        counts: dict[int, int] = {}
        for choice in (loss.choice for loss in report.losses or []):
            if choice:
                counts[choice.row] = counts.get(choice.row, 0) + max(1, choice.seen)
        flips = sorted(Objective(report).flips.items(), key=lambda each: -each[1] / counts[each[0]])
        for number, count in flips[:_MOST_CHOICES]:
            if count >= _ONE_FLIP:
                yield Advice(
                    f"{_place(report.rows[number])}: about {count:,.0f} of {counts[number]:,} choices differ from those of float32",
                    "estimated; the errors here have what follows from that, and the shares have not",
                )
    flipped = [row for row in report.rows if row.measured.flipped]
    flipped.sort(key=lambda row: -row.measured.flipped / row.measured.choices)
    for row in flipped[:_MOST_CHOICES]:
        values = row.measured
        yield Advice(
            f"{_place(row)}: {values.flipped:,} of {values.choices:,} choices differ from those of float32",
            "no error and no share here has what follows from them",
        )
    rows = may_flip(report)
    if rows:
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        yield Advice(
            f"{_place(rows[0])}{more}: what it chooses may be other numbers than in float32, and no estimate here has that",
            "hmp.compare(step, None, policy) counts the choices that differ",
        )


def _place(row: Row) -> str:
    return f"{row.op} in {row.module}" if row.module else row.op


def _of_not_in_8_bits(report: Report) -> Iterator[Advice]:
    """Of ops that no call ran so: where frozen layers did, those that are trained beside them are meant to run otherwise."""
    ran = {(row.op, row.decision) for row in report.rows}
    rows = [row for row in report.rows if row.instead_of and (row.op, row.instead_of) not in ran]
    for group in grouped(rows, lambda row: (row.op, row.instead_of)):
        yield Advice(
            f"{group[0].op} ran as in the lower list, and {group[0].instead_of} names it: its weight requires a gradient, or is none that 8 bits are for",
            f"{counted(sum(row.calls for row in group), 'call')}; inference runs under torch.no_grad(), frozen weights have requires_grad_(False), docs/int8.md has other reasons"
            + _at(row.module for row in group),
        )


def _of_missed(report: Report) -> Iterator[Advice]:
    for group in grouped(report.missed, lambda row: row.op):
        first, held = group[0], sorted({name for row in group for name in row.held_by})
        where = f"held by {', '.join(held[:3])}" if held else f"called at {first.source or 'an unknown place'}"
        yield Advice(
            f"{first.op} runs without casts: call hmp.convert before the function is imported, or call it through its module",
            f"{first.rule}; {counted(sum(row.calls for row in group), 'call')}; {where}",
        )


def _of_uneven(report: Report) -> Iterator[Advice]:
    """The one op that differs most: the others mostly follow from it."""
    for each in (report.uneven or [])[:1]:
        least, most = min(each.casts), max(each.casts)
        ranks = [(report.ranks or [])[each.casts.index(count)].rank for count in (most, least)]
        yield Advice(
            f"the ranks do not cast alike: {each.op} has {counted(most, 'cast')} on rank {ranks[0]} and {least:,} on rank {ranks[1]}",
            "casts of each rank: " + ", ".join(map(_by_rank, (report.uneven or [])[:_MOST_UNEVEN])),
        )


def _of_errors(report: Report, found: list[Edit]) -> Iterator[Advice]:
    yield from (of_edit(each) for each in found if not each.lost)
    if report.compiled:  # the first line
        return
    measured = report.rows and report.low_dtype and not any(_of_threads(report))
    if not found and (is_outside(report) or measured):
        yield Advice(*no_edit(report))


def of_edit(edit: Edit) -> Advice:
    return Advice(f"{edit.text}: {edit.op} {edit.why}", f"{counted(edit.casts, 'cast')} now" + _at([edit.modules]))


def _of_absorbed(report: Report) -> Iterator[Advice]:
    """Updates in place that leave most of the numbers as they are: of weights that are held in bfloat16, mostly."""
    rows = [row for row in report.rows if row.op.endswith("_")]
    for group in grouped(rows, lambda row: row.op):
        found = added(row.measured.absorbed for row in group)
        if found.sums >= _MANY_SUMS and found.lost >= _ABSORBED * found.sums:
            yield Advice(
                f"keep in float32 what {group[0].op} updates: {share(found.lost, found.sums)} of the numbers that it adds are below half of a ulp, and lost",
                f"{found.sums:,} numbers" + (f"; at {group[0].source}" if group[0].source else ""),
            )


def _by_rank(uneven: Uneven) -> str:
    casts = [f"{count:,}" for count in uneven.casts]
    return f"{uneven.op} {' / '.join(casts[:_MOST_RANKS])}{' / …' if len(casts) > _MOST_RANKS else ''}"


def _of_ping_pong(report: Report) -> Iterator[_Line]:
    rules = {(row.op, row.module): row.rule for row in reversed(report.rows) if row.rule}
    for chain in report.ping_pong:
        ops = [step.op for step in chain.ops]
        ends = [(step.op, step.module) for step in (chain.ops[0], chain.ops[-1])]
        reasons = dict.fromkeys(rules[end] for end in ends if end in rules)
        yield (
            chain.seconds,
            Advice(
                f"{' -> '.join(ops)}: {' -> '.join(chain.path)}, there and back {counted(chain.count, 'time')}, "
                f"{_share(chain.seconds, report)}",
                ("; ".join(reasons) + _at([chain.ops[-1].module])).removeprefix("; "),
            ),
        )


def _of_recast(report: Report) -> Iterator[_Line]:
    for entry in report.recast:
        yield (
            entry.seconds,
            Advice(
                f"{entry.tensor} is cast to {entry.to} {counted(entry.times, 'time')} where {entry.needed} would be enough, "
                f"{_share(entry.seconds, report)}",
                f"wanted by {', '.join(entry.ops)}{_at(entry.modules)}; cast it once by hand (hmp.cast)",
            ),
        )


def _of_unlisted(report: Report, whole: float) -> Iterator[_Line]:
    # Outside of modules it is mostly an optimizer.
    rows = (row for row in report.rows if row.decision == "unlisted" and row.module)
    for group in grouped(rows, lambda row: row.op):
        seconds = sum(row.seconds for row in group)
        if seconds >= _LONG * whole and any("float32" in row.dtypes for row in group):
            text = f"{group[0].op} runs in float32 and no list names it, {_share(seconds, report)}"
            # Half of it is what a lower precision could save at best.
            yield (
                seconds / 2,
                Advice(text, counted(sum(row.calls for row in group), "call") + _at(row.module for row in group)),
            )


def _share(seconds: float, report: Report) -> str:
    return f"{share(seconds, report.seconds)} of the block"


def _at(modules: Iterable[str]) -> str:
    where = common(modules)
    return f"; in {where}" if where else ""
