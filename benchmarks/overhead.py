"""What the bookkeeping of habana_mp costs, beside torch.autocast and a wrapper written in Python.

    python benchmarks/overhead.py [--json] [--markdown docs/benchmarks.md]

Everything is timed in one thread and interleaved: each round visits every variant, and the best of many short runs of each
counts, so that what else the machine does matters little. "Extra" is the time above the plain op on bfloat16 tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import timeit
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from habana_mp import hmp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

ROUNDS = 15
# A visit is many short runs, not a long one: on a busy machine only a run of a millisecond or two is left undisturbed.
RUNS = 25
CALLS = 800
ONLY_MM = hmp.Policy.from_ops(lower=["mm"], rest="inputs")


@dataclass(frozen=True)
class Row:
    what: str
    measured: float
    unit: str
    goal: float
    beside: str = ""

    @property
    def reached(self) -> bool:
        return self.measured <= self.goal


@contextlib.contextmanager
def converted(policy: hmp.Policy | str | None = None, log: str = "") -> Iterator[None]:
    if log:
        os.environ["HABANA_MP_LOG"] = log
    hmp.convert(policy=policy)
    try:
        yield
    finally:
        hmp.revert()
        os.environ.pop("HABANA_MP_LOG", None)


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


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


@dataclass(frozen=True)
class Variant:
    scope: Callable[[], AbstractContextManager[Any]]
    statement: str = "mm(a, b)"
    values: Mapping[str, Any] | None = None


def best_ns(variants: Mapping[str, Variant]) -> dict[str, float]:
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(ROUNDS):
        for name, variant in variants.items():
            with variant.scope():
                timer = timeit.Timer(variant.statement, globals={"hmp": hmp, "mm": torch.mm, **(variant.values or {})})
                best[name] = min(best[name], *(run / CALLS * 1e9 for run in timer.repeat(RUNS, CALLS)))
    return best


def pair(dtype: torch.dtype, *, grad: bool = False) -> dict[str, torch.Tensor]:
    """Two operands. With grad they are activations, not leaves: torch.autocast caches the casts of leaves."""
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    if grad:
        a, b = a.requires_grad_() * 1, b.requires_grad_() * 1
    return {"a": a.to(dtype), "b": b.to(dtype)}


def nothing_to_cast() -> list[Row]:
    values = pair(torch.bfloat16)
    best = best_ns(
        {
            "native": Variant(contextlib.nullcontext, values=values),
            "mm alone": Variant(lambda: converted(ONLY_MM), values=values),
            "hmp": Variant(lambda: converted("hmp"), values=values),
            "autocast": Variant(autocast, values=values),
            "python": Variant(python_wrapper, values=values),
        }
    )
    extra = {name: value - best["native"] for name, value in best.items()}
    beside = (
        f"native call {best['native']:.0f} ns; extra of torch.autocast {extra['autocast']:.0f} ns, "
        f"of a Python wrapper {extra['python']:.0f} ns"
    )
    return [
        Row("mm(8x8), nothing to cast, only mm patched: extra", extra["mm alone"], "ns", 30, beside),
        Row("the same, policy hmp: every home patched, rest = first_input", extra["hmp"], "ns", 40, beside),
    ]


def two_casts(*, grad: bool) -> Row:
    float32 = pair(torch.float32, grad=grad)
    best = best_ns(
        {
            "native": Variant(contextlib.nullcontext, values=pair(torch.bfloat16, grad=grad)),
            "hmp": Variant(lambda: converted("hmp"), values=float32),
            "autocast": Variant(autocast, values=float32),
        }
    )
    extra = {name: value - best["native"] for name, value in best.items()}
    return Row(
        f"mm(8x8), two float32 inputs, grad {'on' if grad else 'off'}: extra over torch.autocast's extra",
        extra["hmp"] / extra["autocast"],
        "x",
        1.0,
        f"{extra['hmp']:.0f} ns against {extra['autocast']:.0f} ns; native call {best['native']:.0f} ns",
    )


def disable_casts() -> Row:
    off = Variant(lambda: converted("hmp"), "with hmp.disable_casts():\n pass")
    python = Variant(
        contextlib.nullcontext, "with autocast('cpu', enabled=False):\n pass", {"autocast": torch.autocast}
    )
    best = best_ns({"hmp": off, "autocast": python})
    beside = f"torch.autocast(enabled=False) {best['autocast'] / 1e3:.2f} us"
    return Row("disable_casts, enter and exit", best["hmp"] / 1e3, "us", 0.5, beside)


def verbose_line() -> Row:
    values = pair(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        best = best_ns(
            {
                "quiet": Variant(lambda: converted("hmp"), values=values),
                "casts": Variant(lambda: converted("hmp", f"casts:{folder}/casts.log"), values=values),
                "detail": Variant(lambda: converted("hmp", f"detail:{folder}/detail.log"), values=values),
            }
        )
    detail = (best["detail"] - best["quiet"]) / 1e3
    return Row(
        "verbose line to a file", (best["casts"] - best["quiet"]) / 1e3, "us", 3, f"the detailed form {detail:.2f} us"
    )


def in_fresh_process(script: str, runs: int = 5) -> list[str]:
    """The smallest of what the script prints first, with the rest of that line."""
    lines = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(runs)
    ]
    return min(lines, key=lambda words: float(words[0]))


def convert_and_revert() -> list[Row]:
    def once() -> float:
        start = time.perf_counter()
        hmp.convert()
        hmp.revert()
        return (time.perf_counter() - start) * 1e3

    again = min(once() for _ in range(ROUNDS))
    first, dynamo = in_fresh_process(
        "import sys, time, torch\n"
        "from habana_mp import hmp\n"
        "start = time.perf_counter(); hmp.convert(); hmp.revert()\n"
        "print((time.perf_counter() - start) * 1e3, 'torch._dynamo' in sys.modules)"
    )
    imported = "imported" if dynamo == "True" else "not imported"
    return [
        Row("convert and revert of all homes, first time", float(first), "ms", 50, f"torch._dynamo {imported} by it"),
        Row("the same again", again, "ms", 50),
    ]


def import_time() -> Row:
    (milliseconds,) = in_fresh_process(
        "import time, torch\nstart = time.perf_counter(); import habana_mp\nprint((time.perf_counter() - start) * 1e3)"
    )
    return Row("import habana_mp, after import torch", float(milliseconds), "ms", 50)


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "unknown")
    flags = next((line.split(":")[1].split() for line in info.splitlines() if line.startswith("flags")), [])
    kinds = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    cpus = len(os.sched_getaffinity(0))
    return (
        f"{model}, {cpus} CPUs ({', '.join(kinds)}), {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, one thread"
    )


def markdown(rows: list[Row]) -> str:
    lines = ["| what | measured | goal | |", "|---|---:|---:|---|"]
    for row in rows:
        mark = "" if row.reached else " (missed)"
        lines.append(f"| {row.what} | {row.measured:.3g} {row.unit} | {row.goal:g} {row.unit}{mark} | {row.beside} |")
    return "\n".join(lines)


def document(rows: list[Row]) -> str:
    return (
        "# Benchmarks\n\n"
        f"Written by `make bench`. Machine: {machine()}.\n\n"
        "## Overhead\n\n"
        f"{ROUNDS} rounds visit every variant in turn; the best of {ROUNDS * RUNS} short runs of each counts. "
        '"Extra" is the time above the plain op on bfloat16 tensors.\n\n'
        f"{markdown(rows)}\n"
    )


def measure() -> list[Row]:
    torch.set_num_threads(1)
    return [
        *nothing_to_cast(),
        two_casts(grad=False),
        two_casts(grad=True),
        disable_casts(),
        *convert_and_revert(),
        verbose_line(),
        import_time(),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the table to this file as well")
    arguments = parser.parse_args()
    rows = measure()
    if arguments.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(markdown(rows))
    if arguments.markdown:
        arguments.markdown.write_text(document(rows))


if __name__ == "__main__":
    main()
