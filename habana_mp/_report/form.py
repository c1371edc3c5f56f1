"""The form of a report in a file: which keys it has, and what each holds (``CastReport.to_dict``).

Who reads the values of a report may rely on it: a file may come from anybody.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from habana_mp._report.values import FORMAT, KEYS, VERSION

# The form once more, for other programs; it has no key that this version does not write. tests/report/test_report_schema.py compares it
# with reports.
SCHEMA = Path(__file__).parent / "report.schema.json"
# A report has at most 2^16 rows and as many events of its timeline (src/report/site.h, src/report/report.h). A row
# takes 0.5 to 1 KiB of JSON and an event 100 bytes, so these are some 70 MiB; ranks and findings come on top.
MOST_BYTES = 256 << 20
_MOST_COUNT = (1 << 64) - 1  # as the core counts


class _NotOfForm(Exception):  # noqa: N818 - an answer
    """``where`` is the place in the report, from the inside out."""

    def __init__(self, wanted: str, value: object) -> None:
        super().__init__(wanted, value)
        self.where: list[str] = []


_Check = Callable[[Any], None]


def report_values(text: str) -> dict[str, Any]:
    """The values in the JSON of a report. Raises ValueError that says where it has another form."""
    try:
        values = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("not a report: its values are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not a report: {error}") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"not a report of habana_mp (format must be {FORMAT!r})")
    if values.get("version") != VERSION:
        raise ValueError(f"a report of version {values.get('version')!r:.40}; this habana_mp reads version {VERSION}")
    if lacking := [key for key in KEYS if key not in values]:
        raise ValueError(f"not a complete report: it lacks {', '.join(lacking)}")
    try:
        _REPORT(values)
        _check_places(values)
    except _NotOfForm as wrong:
        wanted, value = wrong.args
        raise ValueError(
            f"not a report: {''.join(reversed(wrong.where))[1:] or 'it'} must be {wanted}, not {value!r:.60}"
        ) from None
    return values


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of a report")


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise _NotOfForm("a string", value)


def _count(value: Any) -> None:
    if type(value) is not int or not 0 <= value <= _MOST_COUNT:
        raise _NotOfForm("a count: a whole number from 0 to 2^64 - 1", value)


def _row_number(value: Any) -> None:
    """-1 is none."""
    if value != -1 or type(value) is not int:
        _count(value)


def _seconds(value: Any) -> None:
    if type(value) is int:
        return _count(value)
    if type(value) is not float or not math.isfinite(value) or value < 0:
        raise _NotOfForm("a time in seconds, 0 or more", value)
    return None


def _number(value: Any) -> None:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _NotOfForm("a finite number", value)


def _list(each: _Check) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, list):
            raise _NotOfForm("a list", value)
        for place, item in enumerate(value):
            _inside(f"[{place}]", each, item)

    return check


def _tuple(*checks: _Check) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, list) or len(value) != len(checks):
            raise _NotOfForm(f"a list of {len(checks)} values", value)
        for place, (each, item) in enumerate(zip(checks, value, strict=True)):
            _inside(f"[{place}]", each, item)

    return check


def _dict(optional: tuple[str, ...] = (), /, **checks: _Check) -> _Check:
    """``from_`` is the key "from". Other keys may be there, and hold anything."""
    keys = {key.rstrip("_"): check for key, check in checks.items()}

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _NotOfForm("an object", value)
        for key, each in keys.items():
            if key in value:
                _inside(f".{key}", each, value[key])
            elif key not in optional:
                raise _NotOfForm(f"an object with the key {key!r}", value)

    return check


def _map(each: _Check) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _NotOfForm("an object", value)
        for key, item in value.items():
            _inside(f".{key}", each, item)

    return check


def _inside(place: str, check: _Check, value: Any) -> None:
    try:
        check(value)
    except _NotOfForm as wrong:
        wrong.where.append(place)
        raise


def _check_places(values: dict[str, Any]) -> None:
    """The timeline and the edges refer to rows by their numbers."""
    rows = len(values["rows"])
    for place, event in enumerate(values["timeline"]["events"]):
        if event[2] >= rows:
            wrong = _NotOfForm(f"the number of one of {rows} rows", event[2])
            wrong.where = ["[2]", f"[{place}]", ".timeline.events"]
            raise wrong
    for place, edge in enumerate(values.get("edges", [])):
        for end in (0, 1):
            if edge[end] >= rows:
                wrong = _NotOfForm(f"the number of one of {rows} rows", edge[end])
                wrong.where = [f"[{end}]", f"[{place}]", ".edges"]
                raise wrong


_SUMS = {
    **dict.fromkeys(("seconds", "op_seconds", "backward_seconds", "cast_seconds"), _seconds),
    **dict.fromkeys(("casts", "cache_hits", "backward_casts", "cast_bytes"), _count),
}
_CAST = _dict(
    from_=_text,
    to=_text,
    count=_count,
    cached=_count,
    bytes=_count,
    seconds=_seconds,
    backward=_dict(count=_count, bytes=_count, seconds=_seconds),
)
_NUMBERS = _dict(
    ("absorbed", "projections", "projected", "projected_low", "ran_seconds", "other_seconds"),
    ran_seconds=_seconds,
    other_seconds=_seconds,
    absorbed=_map(_count),
    projections=_count,
    projected=_number,
    projected_low=_number,
    calls=_count,
    unmeasured=_count,
    **dict.fromkeys(("ran", "low", "range", "backward"), _map(_number)),
    backward_calls=_count,
    changes=_count,
    change=_number,
    change_low=_number,
)
_ROW = _dict(
    ("values", "made_bytes"),
    made_bytes=_map(_count),
    **dict.fromkeys(("op", "module", "front_end", "policy", "decision", "rule", "source"), _text),
    calls=_count,
    seconds=_seconds,
    cast_seconds=_seconds,
    dtypes=_list(_text),
    runs_in=_list(_text),
    casts=_list(_CAST),
    values=_NUMBERS,
)
_REPORT = _dict(
    (
        "rank",
        "backward_seconds",
        "optimizer_seconds",
        "ranks",
        "uneven",
        "low_dtype",
        "projected_squares",
        "edges",
        "steps",
    ),
    projected_squares=_number,
    optimizer_seconds=_seconds,
    steps=_list(_seconds),
    edges=_list(_tuple(_row_number, _count, _text, _count, _count)),
    low_dtype=_text,
    title=_text,
    torch=_text,
    habana_mp=_text,
    rank=_count,
    policies=_list(_dict(name=_text, text=_text, front_end=_text)),
    **_SUMS,
    rows=_list(_ROW),
    ping_pong=_list(
        _dict(ops=_list(_dict(op=_text, module=_text, dtype=_text)), path=_list(_text), count=_count, seconds=_seconds)
    ),
    recast=_list(
        _dict(
            tensor=_text,
            from_=_text,
            to=_text,
            times=_count,
            needed=_count,
            ops=_list(_text),
            modules=_list(_text),
            bytes=_count,
            seconds=_seconds,
        )
    ),
    never_seen=_list(_dict(op=_text, list=_text, rule=_text)),
    missed=_list(_dict(op=_text, calls=_count, module=_text, source=_text, rule=_text, held_by=_list(_text))),
    timeline=_dict(
        ("seconds",),
        stride=_count,
        seconds=_seconds,
        events=_list(_tuple(_seconds, _seconds, _count, _text, _text, _text)),
    ),
    advice=_list(_dict(text=_text, evidence=_text)),
    ranks=_list(_dict(rank=_count, **_SUMS, casts_of=_map(_count))),
    uneven=_list(_dict(op=_text, casts=_list(_count))),
)
