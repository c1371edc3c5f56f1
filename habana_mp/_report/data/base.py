"""The types and units of the fields of a report, and how fields add up."""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

MOST = 1 << 16  # rows, by src/report/site.h, and events, by src/report/report.h
MOST_COUNT = {"maximum": (1 << 64) - 1}  # as the core counts; msgspec has smaller numbers, so form.py checks it


class Adds(Enum):
    """How the values of a field make one that are not summed (added.py)."""

    KEY = auto()  # they are equal, or their parts are not added
    LARGEST = auto()
    SMALLEST = auto()
    FIRST = auto()
    DISTINCT = auto()
    PASSES = auto()  # pass by pass, of reports with signs that merge.py has given them


Count = Annotated[int, Meta(ge=0, title="a count", extra_json_schema=MOST_COUNT)]
Bytes = Annotated[int, Meta(ge=0, title="a size in bytes", extra_json_schema=MOST_COUNT)]
Seconds = Annotated[float, Meta(ge=0, le=1e200, title="a time in seconds")]
Number = Annotated[float, Meta(ge=-1e200, le=1e200, title="a number")]
Size = Annotated[float, Meta(ge=0, le=1e200, title="a number, 0 or more")]
DType = Literal["other", "float8", "float16", "bfloat16", "float32", "float64", "int8"]
CastFrom = Literal["float32", "bfloat16", "float16", "float8"]
ListName = Literal["lower", "fp32", "promote", "weight_int8", "int8", "error"]
Format = Literal["weight_int8", "int8"]
CastTo = Literal["float32", "bfloat16", "float16", "int8"]
Decision = Literal[
    "left alone",
    "lower",
    "fp32",
    "promote",
    "in place",
    "first input",
    "rest fp32",
    "no kernel",
    "weight_int8",
    "int8",
    "off",
    "unlisted",
    "missed",
    "outside",
    "backward",
]
Why = Literal["random", "writes", "reserve", "library", "collective", "kernel", "tensors", "memory", "thread"]


def _named(names: Any) -> Meta:
    """Of a dict, whose keys msgspec leaves out of the schema."""
    return Meta(extra_json_schema={"propertyNames": {"enum": [*get_args(names)]}})


BytesByDType = Annotated[dict[DType, Bytes], _named(DType)]
CallsByReason = Annotated[dict[Why, Count], Meta(min_length=1), _named(Why)]
DISTINCT = Meta(extra_json_schema={"uniqueItems": True})  # in the schema alone; Row looks itself


class Data(Struct, frozen=True):
    """Parts of a report that are of the same, by the fields that are no figures, add up to one."""
