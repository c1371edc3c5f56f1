"""The rows of a report that a question is about. A name that no row has raises: zeros for a wrong name would look like the best result."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from difflib import get_close_matches

import torch

import habana_mp._core as _core
from habana_mp._cast import dtype_named
from habana_mp._policy.names import names_of
from habana_mp._report.data import Cast, Report, Row
from habana_mp._show.did_you_mean import did_you_mean, near
from habana_mp._show.module_path import ModulePath
from habana_mp._show.short import brief


def asked_rows(report: Report, op: str | None, module: str | None) -> list[Row]:
    """Those of an op in a module and inside of it, None for all. There may be none, of an op and a module that are in the report apart."""
    names = None if op is None else names_of(op)
    if module is not None and not isinstance(module, str):
        raise TypeError(f"module must be a path such as 'encoder.layers.0', not {brief(module)}")
    if op is not None and names is not None:
        _check_op(op, names, report.rows)
    if module:
        _check_module(module, report.rows)
    return [
        row
        for row in report.rows
        if (names is None or row.op in names) and (module is None or row.where.is_inside(module))
    ]


def asked_casts(report: Report, op: str | None, to: torch.dtype | str | None, module: str | None) -> list[Cast]:
    """Those of the forward passes of these rows, to one dtype or to any."""
    dtype = None if to is None else dtype_name(to)
    return [cast for row in asked_rows(report, op, module) for cast in row.casts if dtype in (None, cast.to)]


def dtype_name(dtype: object) -> str:
    name = dtype_named(dtype)
    if name not in _core.ELIGIBLE_DTYPES:
        *others, last = _core.ELIGIBLE_DTYPES
        raise ValueError(f"to must be {', '.join(others)} or {last}, not {dtype!r}")
    return name


def never_called(op: str | None, where: str) -> str:
    return f"{'an op' if op is None else repr(op)} was not called {where}, or only in compiled code"


def _check_op(asked: str, names: AbstractSet[str], rows: list[Row]) -> None:
    seen = {row.op for row in rows}
    if seen.isdisjoint(names):
        raise ValueError(never_called(asked, "in the block") + near(asked, sorted(seen)))


def _check_module(asked: str, rows: list[Row]) -> None:
    if any(row.where.is_inside(asked) for row in rows):
        return
    by_path = {row.where.name: row.module for row in rows if row.module}
    close = get_close_matches(ModulePath.of(asked).name, by_path, n=3, cutoff=0.7)
    raise ValueError(f"no op ran in a module {asked!r}{did_you_mean(by_path[path] for path in close)}")
