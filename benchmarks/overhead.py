"""What the bookkeeping of habana_mp costs, beside torch.autocast and a wrapper written in Python."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from harness.command import run
from harness.device import DEVICE, DEVICES
from harness.pages import Report
from harness.rows import Row, table_of
from harness.timing import shortest, take_turns, timer
from subjects.variants import autocast, converted

from habana_mp import hmp
from habana_mp._hpu.mapping import map_hpu, unmap_hpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager


@dataclass(frozen=True)
class Effort:
    rounds: int
    # A visit is many short runs, not a long one: on a busy machine only a run of a millisecond or two is left undisturbed.
    runs: int
    calls: int
    processes: int


FULL = Effort(rounds=15, runs=25, calls=800, processes=5)
QUICK = Effort(rounds=1, runs=1, calls=10, processes=1)
ONLY_MM = hmp.Policy.from_ops(lower=["mm"], rest="inputs")


@contextlib.contextmanager
def python_wrapper() -> Iterator[None]:
    """torch.mm behind the wrapper that the guides print: one cast function over all arguments (F14)."""
    original = torch.mm

    def to_bf16(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            return value.to(torch.bfloat16)
        return value

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*map(to_bf16, args), **{name: to_bf16(value) for name, value in kwargs.items()})

    torch.mm = wrapper
    try:
        yield
    finally:
        torch.mm = original


@dataclass(frozen=True)
class Variant:
    scope: Callable[[], AbstractContextManager[Any]]
    statement: str = "mm(a, b)"
    values: Mapping[str, Any] | None = None


def best_ns(effort: Effort, variants: Mapping[str, Variant]) -> dict[str, float]:
    def visit(variant: Variant) -> float:
        with variant.scope():
            call = timer(variant.statement, {"hmp": hmp, "mm": torch.mm, **(variant.values or {})})
            return shortest(call, effort.runs, effort.calls) * 1e9

    visits = {name: functools.partial(visit, variant) for name, variant in variants.items()}
    return take_turns(visits, effort.rounds)


def pair(dtype: torch.dtype, *, grad: bool = False) -> dict[str, torch.Tensor]:
    """Two operands. With grad they are activations, not leaves: torch.autocast caches the casts of leaves."""
    a, b = torch.randn(8, 8, device=DEVICE), torch.randn(8, 8, device=DEVICE)
    if grad:
        a, b = a.requires_grad_() * 1, b.requires_grad_() * 1
    return {"a": a.to(dtype), "b": b.to(dtype)}


def nothing_to_cast(effort: Effort) -> list[Row]:
    values = pair(torch.bfloat16)
    best = best_ns(
        effort,
        {
            "native": Variant(contextlib.nullcontext, values=values),
            "mm alone": Variant(lambda: converted(ONLY_MM), values=values),
            "hmp": Variant(lambda: converted("hmp"), values=values),
            "autocast": Variant(autocast, values=values),
            "python": Variant(python_wrapper, values=values),
        },
    )
    extra = {name: value - best["native"] for name, value in best.items()}
    beside = (
        f"native call {best['native']:.0f} ns; extra of torch.autocast {extra['autocast']:.0f} ns, "
        f"of a Python wrapper {extra['python']:.0f} ns"
    )
    return [
        Row("mm(8x8), nothing to cast, only mm patched: extra", extra["mm alone"], "ns", beside),
        Row("the same, policy hmp: every home patched, rest = first_input", extra["hmp"], "ns", beside),
        Row("mm(8x8), nothing to cast, only mm patched: native call", best["native"], "ns"),
        Row("mm(8x8), nothing to cast, only mm patched: extra of torch.autocast", extra["autocast"], "ns"),
    ]


def two_casts(effort: Effort, *, grad: bool) -> Row:
    float32 = pair(torch.float32, grad=grad)
    best = best_ns(
        effort,
        {
            "native": Variant(contextlib.nullcontext, values=pair(torch.bfloat16, grad=grad)),
            "hmp": Variant(lambda: converted("hmp"), values=float32),
            "autocast": Variant(autocast, values=float32),
        },
    )
    extra = {name: value - best["native"] for name, value in best.items()}
    return Row(
        f"mm(8x8), two float32 inputs, grad {'on' if grad else 'off'}: extra over torch.autocast's extra",
        extra["hmp"] / extra["autocast"],
        "x",
        f"{extra['hmp']:.0f} ns against {extra['autocast']:.0f} ns; native call {best['native']:.0f} ns",
    )


def disable_casts(effort: Effort) -> Row:
    off = Variant(lambda: converted("hmp"), "with hmp.disable_casts():\n pass")
    python = Variant(
        contextlib.nullcontext, "with autocast('cpu', enabled=False):\n pass", {"autocast": torch.autocast}
    )
    best = best_ns(effort, {"hmp": off, "autocast": python})
    beside = f"torch.autocast(enabled=False) {best['autocast'] / 1e3:.2f} us"
    return Row("disable_casts, enter and exit", best["hmp"] / 1e3, "us", beside)


def verbose_line(effort: Effort) -> Row:
    values = pair(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        best = best_ns(
            effort,
            {
                "quiet": Variant(lambda: converted("hmp"), values=values),
                "casts": Variant(lambda: converted("hmp", f"casts:{folder}/casts.log"), values=values),
                "detail": Variant(lambda: converted("hmp", f"detail:{folder}/detail.log"), values=values),
            },
        )
    detail = (best["detail"] - best["quiet"]) / 1e3
    return Row(
        "verbose line to a file", (best["casts"] - best["quiet"]) / 1e3, "us", f"the detailed form {detail:.2f} us"
    )


@contextlib.contextmanager
def reported() -> Iterator[None]:
    with converted("hmp"), hmp.report():
        yield


def training_step(model: torch.nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    model(x).sum().backward()


def open_report(effort: Effort) -> list[Row]:
    """How much slower calls are while a report is open. With none open it is the flag test of the rows above."""
    small = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(8)])
    block = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    cases = {
        "mm(8x8), two float32 inputs": ("mm(a, b)", pair(torch.float32), 1),
        "sin of 4 numbers, which no list names": ("x.sin()", {"x": torch.randn(4)}, 1),
        "8 modules Linear(16), forward": ("model(x)", {"model": small, "x": torch.randn(4, 16)}, 10),
        "encoder layer of 128, 4 x 64 tokens, training step": (
            "step(model, x)",
            {"step": training_step, "model": block, "x": torch.randn(4, 64, 128)},
            400,
        ),
    }
    rows = []
    for name, (statement, values, weight) in cases.items():
        best = best_ns(
            replace(effort, calls=max(1, effort.calls // weight)),
            {
                "off": Variant(lambda: converted("hmp"), statement, values),
                "on": Variant(reported, statement, values),
            },
        )
        times = f"{best['on'] / 1e3:.2f} us against {best['off'] / 1e3:.2f} us"
        rows.append(Row(f"report on over off: {name}", best["on"] / best["off"], "x", times))
    return rows


def in_fresh_process(effort: Effort, script: str) -> list[str]:
    """The smallest of what the script prints first, with the rest of that line."""
    # pip compiles what it installs. This tree has no bytecode where Python may not write it, and its import takes three times as long.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", script]
    lines = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
        for _ in range(effort.processes)
    ]
    return min(lines, key=lambda words: float(words[0]))


def convert_and_revert(effort: Effort) -> list[Row]:
    def once() -> float:
        start = time.perf_counter()
        hmp.convert()
        hmp.revert()
        return (time.perf_counter() - start) * 1e3

    again = min(once() for _ in range(effort.rounds))
    first, dynamo = in_fresh_process(
        effort,
        "import sys, time, torch\n"
        "from habana_mp import hmp\n"
        "start = time.perf_counter(); hmp.convert(); hmp.revert()\n"
        "print((time.perf_counter() - start) * 1e3, 'torch._dynamo' in sys.modules)",
    )
    imported = "imported" if dynamo == "True" else "not imported"
    return [
        Row("convert and revert of all homes, first time", float(first), "ms", f"torch._dynamo {imported} by it"),
        Row("the same again", again, "ms"),
    ]


def import_time(effort: Effort) -> Row:
    (milliseconds,) = in_fresh_process(
        effort,
        "import time, torch\nstart = time.perf_counter(); import habana_mp\nprint((time.perf_counter() - start) * 1e3)",
    )
    return Row("import habana_mp, after import torch", float(milliseconds), "ms")


def regions(effort: Effort) -> list[Row]:
    """hmp.autocast with the lists of torch.autocast, beside it."""
    lists = hmp.Policy.load(f"torch-{DEVICE}").with_low_dtype(torch.bfloat16)

    def ours(policy: hmp.Policy = lists) -> AbstractContextManager[Any]:
        return hmp.autocast(DEVICE, policy=policy)

    def beside_torch(
        values: Mapping[str, Any], policy: hmp.Policy = lists, op: str = "mm", native: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        statement = f"{op}(a, b)"
        globals_ = {**values, "add": torch.add}
        return best_ns(
            effort,
            {
                "native": Variant(contextlib.nullcontext, statement, {**globals_, **(native or {})}),
                "autocast": Variant(autocast, statement, globals_),
                "hmp": Variant(functools.partial(ours, policy), statement, globals_),
            },
        )

    low, float32 = pair(torch.bfloat16), pair(torch.float32)
    settled = beside_torch(low)
    cast = beside_torch(float32, native=low)
    unlisted = beside_torch(low, op="add")
    dropped = beside_torch(low, lists.with_edits("-mm"))
    extra = {name: value - cast["native"] for name, value in cast.items()}
    scope = {"ours": functools.partial(hmp.autocast, DEVICE, torch.bfloat16), "theirs": autocast}
    enter = best_ns(
        effort,
        {
            "hmp": Variant(contextlib.nullcontext, "with ours():\n pass", scope),
            "autocast": Variant(contextlib.nullcontext, "with theirs():\n pass", scope),
        },
    )
    return [
        Row(
            "hmp.autocast, mm(8x8), nothing to cast: over torch.autocast",
            settled["hmp"] - settled["autocast"],
            "ns",
            f"extra {settled['hmp'] - settled['native']:.0f} ns against {settled['autocast'] - settled['native']:.0f} ns",
        ),
        Row(
            "hmp.autocast, mm(8x8), two float32 inputs: extra over torch.autocast's extra",
            extra["hmp"] / extra["autocast"],
            "x",
            f"{extra['hmp']:.0f} ns against {extra['autocast']:.0f} ns",
        ),
        Row(
            "hmp.autocast, an op that nobody lists (add): over the plain op",
            unlisted["hmp"] - unlisted["native"],
            "ns",
            f"torch.autocast {unlisted['autocast'] - unlisted['native']:.0f} ns; native call {unlisted['native']:.0f} ns",
        ),
        Row(
            "hmp.autocast, an op that torch lists and the policy does not: over torch.autocast",
            dropped["hmp"] - dropped["autocast"],
            "ns",
        ),
        Row(
            "hmp.autocast, made, entered and left: over torch.autocast",
            enter["hmp"] / enter["autocast"],
            "x",
            f"{enter['hmp'] / 1e3:.2f} us against {enter['autocast'] / 1e3:.2f} us",
        ),
    ]


@contextlib.contextmanager
def hpu_mapped() -> Iterator[None]:
    map_hpu("cpu")
    try:
        yield
    finally:
        unmap_hpu()


def device_names(effort: Effort) -> list[Row]:
    """What "hpu" costs where it stands for CPU, beside "cpu" while it does not."""
    values = {"torch": torch, "x": torch.randn(8, 8), **pair(torch.float32)}
    with hpu_mapped():
        hpu = torch.device("hpu")
    same = (
        "mm(a, b)",
        "torch.zeros(3)",
        "torch.zeros(3, device=device)",
        "torch.zeros(3, device=name)",
        "x.to(device)",
        "x.to(name)",
        "torch.device(name)",
        "x.device == device",
    )
    rows = []
    for statement, plain in (*zip(same, same, strict=True), ("x.hpu()", "x.to(device)")):
        best = best_ns(
            effort,
            {
                "off": Variant(contextlib.nullcontext, plain, {**values, "name": "cpu", "device": torch.device("cpu")}),
                "on": Variant(hpu_mapped, statement, {**values, "name": "hpu", "device": hpu}),
            },
        )
        what = f"hpu mapped to cpu: {statement}, over {'the same' if plain == statement else plain} with cpu"
        rows.append(Row(what, best["on"] - best["off"], "ns", f"{best['on']:.0f} ns against {best['off']:.0f} ns"))
    return rows


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    torch.set_num_threads(1)
    rows = [
        *nothing_to_cast(effort),
        two_casts(effort, grad=False),
        two_casts(effort, grad=True),
        *regions(effort),
    ]
    queued = "A call ends when the device has done it, or when the next one can be queued. "
    if DEVICE == "cpu":
        queued = ""
        rows += [
            disable_casts(effort),
            *device_names(effort),
            *convert_and_revert(effort),
            verbose_line(effort),
            *open_report(effort),
            import_time(effort),
        ]
    text = (
        f"One thread; {effort.rounds} rounds, the best of {effort.rounds * effort.runs} short runs. {queued}"
        f'"Extra" is the time above the plain op on bfloat16 tensors.\n\n{table_of(rows)}'
    )
    return Report("Overhead", rows, text)


if __name__ == "__main__":
    run(__doc__, measure, DEVICES)
