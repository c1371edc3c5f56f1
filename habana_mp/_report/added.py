"""Reports and their parts added up, by what habana_mp/_report/data/ says of their fields."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from msgspec import UNSET, UnsetType, structs

from habana_mp._report.data import Adds, Data

_Item = TypeVar("_Item")
_Name = TypeVar("_Name", bound=str)
_Data = TypeVar("_Data", bound=Data)
_Rule = Callable[[Sequence[Any]], Any]


def grouped(items: Iterable[_Item], key: Callable[[_Item], Any]) -> list[list[_Item]]:
    """The items of each key, in the order in which the keys come."""
    groups: dict[Any, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def added(several: Iterable[_Data]) -> _Data:
    """Parts as one, of which there is one at least. Figures are sums, but for the largest and smallest of some."""
    parts = [*several]
    if len(parts) < 2:
        return parts[0]
    figures = {}
    for name, rule in _rules(type(parts[0])).items():
        values = [value for value in (getattr(part, name) for part in parts) if value is not UNSET]
        if values:
            figures[name] = rule(values)
    return structs.replace(parts[0], **figures)


def added_alike(parts: Iterable[_Data]) -> list[_Data]:
    """Those that are of the same as one each, in the order in which the first of them come."""
    return [added(group) for group in grouped(parts, key)]


def with_signs(part: _Data, seed: str) -> _Data:
    """The changes of passes times random signs, the same for all rows: passes of two reports are added up as those that a report has too many of."""
    marked = {name for name, hint in _hints(type(part)).items() if Adds.PASSES in getattr(hint, "__metadata__", ())}
    changed: dict[str, Any] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if name in marked:
            draw = random.Random(seed)  # noqa: S311
            changed[name] = [draw.choice((-1, 1)) * each for each in value]
        elif isinstance(value, Data):
            changed[name] = with_signs(value, seed)
        elif isinstance(value, list) and value and isinstance(value[0], Data):
            changed[name] = [with_signs(each, seed) for each in value]
    return structs.replace(part, **changed) if changed else part


def key(part: Data) -> Any:
    """What a part is of: its fields that are no figures."""
    return tuple(
        value if isinstance(value := getattr(part, name), str) else repr(value)
        for name in part.__struct_fields__
        if name not in _rules(type(part))
    )


def added_counts(several: Iterable[Mapping[_Name, int]]) -> dict[_Name, int]:
    total: dict[_Name, int] = {}
    for counts in several:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


@functools.cache
def _hints(kind: type[Data]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@functools.cache
def _rules(kind: type[Data]) -> dict[str, _Rule]:
    hints = _hints(kind)
    found = {name: _rule(hints[name]) for name in kind.__struct_fields__}
    return {name: rule for name, rule in found.items() if rule is not None}


_MARKED: dict[Adds, _Rule] = {
    Adds.LARGEST: max,
    Adds.SMALLEST: lambda values: min(filter(None, values), default=0.0),
    Adds.FIRST: lambda values: values[0],
    Adds.PASSES: lambda values: [*map(sum, zip_longest(*values, fillvalue=0.0))],
    Adds.DISTINCT: lambda values: [*dict.fromkeys(item for items in values for item in items)],
}


def _rule(hint: Any) -> _Rule | None:
    """None for a field that is no figure."""
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Adds)]
    if marks:
        return _MARKED.get(marks[0])
    kinds = [each for each in _plain(hint) if each is not UnsetType]
    kind = kinds[0]
    if kind in (int, float):
        return sum
    if get_origin(kind) is dict:
        return added_counts
    if get_origin(kind) is list:
        inner = _plain(get_args(kind)[0])[0]
        return (lambda values: added_alike(part for parts in values for part in parts)) if _is_data(inner) else None
    return added if _is_data(kind) else None


def _plain(hint: Any) -> list[Any]:
    """The types of a union, without what is annotated."""
    if hasattr(hint, "__metadata__"):
        return _plain(hint.__origin__)
    return [plain for each in get_args(hint) for plain in _plain(each)] if _is_union(hint) else [hint]


def _is_union(hint: Any) -> bool:
    return UnsetType in get_args(hint)


def _is_data(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Data)
