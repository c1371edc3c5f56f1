"""The form of a report in a file: what ``CastReport.load`` accepts, and its JSON schema.

Who reads the values of a report may rely on it: a file may come from anybody.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.json

from habana_mp._report.data import FORMAT, VERSION, Data, Report

# A report has at most 2^16 rows and as many events of its timeline. A row takes 0.5 to 1 KiB of JSON and an event 100
# bytes, so these are some 70 MiB; ranks and findings come on top.
MOST_BYTES = 256 << 20


def read_report(text: str) -> Report:
    """The report in its JSON. Raises ValueError that says where it has another form."""
    try:
        values = json.loads(text, parse_constant=_refuse, parse_int=_whole)
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
    return report_of(values)


def report_of(values: dict[str, Any]) -> Report:
    try:
        return msgspec.convert(values, Report)
    except msgspec.ValidationError as error:
        wanted, _, place = str(error).rpartition(" - at ")
        raise ValueError(f"not a report: {wanted or place:.200}{wanted and f' at {place:.100}'}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of a report")


def _whole(digits: str) -> int:
    number = int(digits)
    if abs(number) >= 1 << 64:
        raise ValueError(f"{digits:.30}... is not a number of a report")
    return number


def schema() -> dict[str, Any]:
    """A JSON schema of the reports that this version writes: unlike the reader it knows no other keys, and all must be there."""
    _, parts = msgspec.json.schema_components([Report])
    for kind in _kinds(Data):
        part = parts.get(kind.__name__, {})
        part.pop("description", None)  # the docstring, which is for who reads the source
        if part.get("type") == "object":
            fields = msgspec.structs.fields(kind)
            part |= {
                "additionalProperties": False,
                "required": [each.encode_name for each in fields if each.default is not msgspec.UNSET],
            }
            for each in fields:
                text = [text for text in each.type.__metadata__ if isinstance(text, str)]
                part["properties"][each.encode_name] |= {"description": "".join(text)}
    report = parts.pop("Report")
    marks = {
        "format": {"description": "The mark of a report.", "const": FORMAT},
        "version": {"description": "The version of the form. CastReport.load raises on another one.", "const": VERSION},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **report,
        "title": "A report of habana_mp",
        "description": "What CastReport.to_json and habana-mp report --json write. Times are in seconds, sizes in bytes.",
        "required": [*marks, *report["required"]],
        "dependentRequired": {name: [*others] for name, others in Report.needed.items()},
        "properties": {**marks, **report["properties"]},
        "$defs": parts,
    }


def _kinds(kind: type[Data]) -> Iterator[type[Data]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
