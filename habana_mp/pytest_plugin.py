"""A pytest plugin with two fixtures: ``assert_casts`` asserts exactly which casts a call makes, and ``assert_same`` that a step has the numbers
of a recording that the repository keeps. ``pytest --hmp-record`` writes these recordings.

To use it, write ``pytest_plugins = ["habana_mp.pytest_plugin"]`` in the conftest.py of your project. It is not an entry point, because
pytest would then import torch for every project in the environment.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from habana_mp._evidence.compare import compare
from habana_mp._evidence.recordings.file import SUFFIX
from habana_mp._evidence.recordings.record import record
from habana_mp._policy.names import names_of
from habana_mp._report.cast_report import CastReport, report
from habana_mp._report.findings.asked import dtype_name
from habana_mp._report.findings.unknown import no_op
from habana_mp._show.short import brief
from habana_mp._show.units import counted, whole

Expected = Mapping[str, Mapping[torch.dtype | str, int]]


@pytest.fixture(name="assert_casts")
def _assert_casts() -> Callable[[Callable[[], object], Expected], CastReport]:
    """``assert_casts(function, {"linear": {"bfloat16": 2}})`` calls the function and fails unless these are exactly its casts.

    The keys are ops, by any of their names, and dtypes or their names. The function has to call them. The counts are those of ``CastReport.casts``, so they do not depend
    on the weight cache. ``{}`` asserts that nothing is cast. Returns the report. Raises TypeError or ValueError for a coroutine function
    and for keys and counts that are not accepted.
    """
    return assert_casts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hmp-record", action="store_true", help="assert_same writes its recordings and compares nothing")


@pytest.fixture(name="assert_same")
def _assert_same(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``assert_same(step, "mlp", rtol=1e-5)`` fails unless the step has the numbers of ``recordings/mlp.rec`` beside the file of the test.

    ``pytest --hmp-record`` writes the recordings of the selected tests. ``rtol`` and ``modules`` are those of ``compare``. The step has no
    arguments and returns the values to compare at the end, if any. Raises what ``compare`` raises.
    """
    folder = request.path.parent / "recordings"
    writes = bool(request.config.getoption("--hmp-record"))

    def assert_same(
        step: Callable[[], Any], name: str, *, modules: Mapping[str, str] | None = None, rtol: float = 0.0
    ) -> None:
        __tracebackhide__ = True
        path = folder / f"{name}{SUFFIX}"
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            with record(path) as run:
                run.returns(step())
            return
        if not path.exists():
            pytest.fail(f"{_shown(path)} does not exist. pytest --hmp-record writes it", pytrace=False)
        found = compare(step, path, modules=modules, rtol=rtol)
        if not found.same:
            pytest.fail(str(found), pytrace=False)

    return assert_same


def _shown(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def assert_casts(function: Callable[[], object], expected: Expected) -> CastReport:
    __tracebackhide__ = True
    if not callable(function):
        raise TypeError(
            f"assert_casts takes a function without arguments, such as lambda: model(x), not {brief(function)}"
        )
    wanted = _checked(expected)
    with report() as seen:
        result = function()
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"assert_casts calls {function!r} and does not await it. Pass lambda: asyncio.run(f())")
    counts = _counts(seen, wanted)
    called = {row.op for row in seen._data().rows}
    if not called:
        pytest.fail(": ".join(no_op(seen._data())), pytrace=False)
    if any(want != got or not called & {*names_of(op)} for (op, _), (want, got) in counts.items()):
        pytest.fail(_difference(seen, counts), pytrace=False)
    return seen


def _checked(expected: Expected) -> dict[tuple[str, str], int]:
    wanted = {}
    if not isinstance(expected, Mapping):
        raise TypeError(
            f'the expected casts must be a mapping such as {{"linear": {{"bfloat16": 2}}}}, not {brief(expected)}'
        )
    taken: dict[str, str] = {}
    for op, by_dtype in expected.items():
        for name in names_of(op):
            if taken.setdefault(name, op) != op:
                raise ValueError(f"{taken[name]!r} and {op!r} are the same op. Use one name for its casts")
        if not isinstance(by_dtype, Mapping):
            raise TypeError(f'the casts of {op!r} must be a mapping such as {{"bfloat16": 2}}, not {by_dtype!r}')
        for dtype, count in by_dtype.items():
            number = whole(count)
            if number is None or number < 0:
                raise TypeError(f"the casts of {op!r} to {dtype!r} must be a number, 0 or more, not {count!r}")
            wanted[op, dtype_name(dtype)] = number
    return wanted


def _counts(seen: CastReport, wanted: dict[tuple[str, str], int]) -> dict[tuple[str, str], tuple[int, int]]:
    """(expected, seen) by op and dtype; an op has the name that the test gives it."""
    named = {name: op for op, _ in wanted for name in names_of(op)}
    got: dict[tuple[str, str], int] = {}
    for row in seen._data().rows:
        for cast in row.casts:
            key = named.get(row.op, row.op), cast.to
            got[key] = got.get(key, 0) + cast.count
    keys = dict.fromkeys([*wanted, *(key for key in got if got[key])])
    return {key: (wanted.get(key, 0), got.get(key, 0)) for key in keys}


def _difference(seen: CastReport, counts: dict[tuple[str, str], tuple[int, int]]) -> str:
    rows = seen._data().rows
    lines = ["the casts are not the expected ones:"]
    for (op, dtype), (want, got) in counts.items():
        if want == got and any(row.op in names_of(op) for row in rows):
            continue
        lines.append(f"  {op} to {dtype}: expected {want}, got {got}")
        for row in rows:
            here = sum(cast.count for cast in row.casts if cast.to == dtype)
            if here and row.op in names_of(op):
                where = " | ".join(part for part in (row.rule or row.decision, row.module, row.source) if part)
                lines.append(f"      {here} | {where}")
        if got == 0:
            lines += [
                f"      seen, {row.decision}: {counted(row.calls, 'call')} on {', '.join(row.dtypes)}"
                for row in rows
                if row.op in names_of(op)
            ] or ["      never called"]
    actual: dict[str, dict[str, int]] = {}
    for (op, dtype), (_, got) in counts.items():
        if got:
            actual.setdefault(op, {})[dtype] = got
    return "\n".join([*lines, "all casts, as assert_casts takes them:", f"  {json.dumps(actual)}"])
