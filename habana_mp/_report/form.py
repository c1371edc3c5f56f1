"""The form of a report in a file: what ``CastReport.load`` accepts.

Who reads the values of a report may rely on it: a file may come from anybody.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from habana_mp._report.values import FORMAT, KEYS, VERSION

# What each key holds, for the check below and for other programs. A key that has a default may be missing.
SCHEMA = Path(__file__).parent / "report.schema.json"
# A report has at most 2^16 rows and as many events of its timeline (src/report/site.h, src/report/report.h). A row
# takes 0.5 to 1 KiB of JSON and an event 100 bytes, so these are some 70 MiB; ranks and findings come on top.
MOST_BYTES = 256 << 20
_MOST_COUNT = (1 << 64) - 1  # as the core counts

_Schema = dict[str, Any]


class _NotOfForm(Exception):  # noqa: N818 - an answer
    """``where`` is the place in the report, from the inside out."""

    def __init__(self, wanted: str, value: object) -> None:
        super().__init__(wanted, value)
        self.where: list[str] = []


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
        raise ValueError(
            f"a report of version {reprlib.repr(values.get('version')):.40}; this habana_mp reads version {VERSION}"
        )
    if lacking := [key for key in KEYS if key not in values]:
        raise ValueError(f"not a complete report: it lacks {', '.join(lacking)}")
    try:
        _check(values, _schema())
        _check_places(values)
    except _NotOfForm as wrong:
        wanted, value = wrong.args
        raise ValueError(
            f"not a report: {''.join(reversed(wrong.where))[1:] or 'it'} must be {wanted}, not {reprlib.repr(value):.60}"
        ) from None
    return values


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of a report")


@functools.cache
def _schema() -> _Schema:
    found: _Schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return found


def _check(value: Any, schema: _Schema) -> None:
    """By what report.schema.json uses of JSON Schema, but that other keys may be there, and hold anything."""
    if "$ref" in schema:
        schema = _schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    if "const" in schema or "enum" in schema:
        accepted = schema.get("enum", [schema.get("const")])
        if type(value) not in (str, int) or value not in accepted:
            raise _NotOfForm(" or ".join(map(repr, accepted)), value)
    else:
        _CHECKS[schema["type"]](value, schema)


def _string(value: Any, schema: _Schema) -> None:  # noqa: ARG001 - as the others
    if not isinstance(value, str):
        raise _NotOfForm("a string", value)


def _number(value: Any, schema: _Schema) -> None:
    wanted = schema["title"]
    if type(value) is int and abs(value) > _MOST_COUNT:
        raise _NotOfForm(_schema()["$defs"]["count"]["title"], value)
    if type(value) not in ((int,) if schema["type"] == "integer" else (int, float)) or not math.isfinite(value):
        raise _NotOfForm(wanted, value)
    if not schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf):
        raise _NotOfForm(wanted, value)


def _array(value: Any, schema: _Schema) -> None:
    if not isinstance(value, list):
        raise _NotOfForm("a list", value)
    each = schema.get("prefixItems")
    if each is not None and len(value) != len(each):
        raise _NotOfForm(f"a list of {len(each)} values", value)
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise _NotOfForm(f"a list of {least} to {most} values", value)
    for place, item in enumerate(value):
        _inside(f"[{place}]", item, schema["items"] if each is None else each[place])
    if schema.get("uniqueItems") and len(set(value)) < len(value):
        raise _NotOfForm("a list of different values", value)


def _object(value: Any, schema: _Schema) -> None:
    if not isinstance(value, dict):
        raise _NotOfForm("an object", value)
    if len(value) < schema.get("minProperties", 0):
        raise _NotOfForm("an object with a key", value)
    known, others = schema.get("properties", {}), schema["additionalProperties"]
    for key in schema.get("required", ()):
        if key not in value and "default" not in known[key]:
            raise _NotOfForm(f"an object with the key {key!r}", value)
        value.setdefault(key, copy.copy(known[key].get("default")))
    for key, item in value.items():
        if key in known:
            _inside(f".{key}", item, known[key])
        elif others:
            _inside(f".{key}", key, schema.get("propertyNames", {"type": "string"}))
            _inside(f".{key}", item, others)
    for key, keys in schema.get("dependentRequired", {}).items():
        if key in value and (lacking := [each for each in keys if each not in value]):
            raise _NotOfForm(f"an object with the key {lacking[0]!r} beside {key!r}", value)


_CHECKS: dict[str, Callable[[Any, _Schema], None]] = {
    "string": _string,
    "integer": _number,
    "number": _number,
    "array": _array,
    "object": _object,
}


def _inside(place: str, value: Any, schema: _Schema) -> None:
    try:
        _check(value, schema)
    except _NotOfForm as wrong:
        wrong.where.append(place)
        raise


def _check_places(values: dict[str, Any]) -> None:
    """The timeline and the edges refer to rows by their numbers."""
    rows = len(values["rows"])
    for path, lists, own in (
        (".timeline.events", values["timeline"]["events"], (2,)),
        (".edges", values.get("edges", []), (0, 1)),
    ):
        for place, each in enumerate(lists):
            for i in own:
                if each[i] >= rows:
                    wrong = _NotOfForm(f"the number of one of {rows} rows", each[i])
                    wrong.where = [f"[{i}]", f"[{place}]", path]
                    raise wrong
