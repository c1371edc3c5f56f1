"""Linear layers of few rows, as in decoding: how much of the memory's read bandwidth they reach. And of many rows: 8 bits over bfloat16.
Layers in 8 bits have their error beside other packages, too.

Several weights are visited in turn, together much larger than a cache, so that each product reads its weight from memory.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from harness.command import run
from harness.pages import Report
from harness.rows import Comparison, Ratio, Row, rows_of, table, table_of_comparisons
from harness.timing import take_turns
from subjects import quantized
from subjects.variants import INT8, converted, in_8_bits
from torch.nn import functional

from habana_mp import hmp
from habana_mp._evidence.tune.runs import relative_error

FEW_ROWS = (1, 8, 16)
MANY_ROWS = (64, 128, 256, 512)
PACKED, PLAIN = "oneDNN, packed", "F.linear in bf16"
READS: dict[str, Callable[[torch.Tensor], object]] = {
    "sum of int64": lambda weight: weight.view(torch.int64).sum(),
    "sum of float32": lambda weight: weight.view(torch.float32).sum(),
    "largest of float32": lambda weight: weight.view(torch.float32).amax(),
}


@dataclass(frozen=True)
class Effort:
    side: int  # of a weight
    weights: int
    threads: tuple[int, ...]
    rounds: int
    seconds: float


FULL = Effort(4096, weights=6, threads=(1, 2), rounds=5, seconds=5)
QUICK = Effort(256, weights=2, threads=(1,), rounds=1, seconds=0)


@dataclass(frozen=True)
class Way:
    scope: Callable[[], AbstractContextManager[Any]]
    calls: list[Callable[[], object]]  # one for each weight

    def visit(self) -> float:
        """Seconds a weight: the second time round, when what is kept of the weights has been made."""
        with torch.no_grad(), self.scope():
            for call in self.calls:
                call()
            begun = time.perf_counter()
            for call in self.calls:
                call()
            return (time.perf_counter() - begun) / len(self.calls)

    def results(self) -> torch.Tensor:
        with torch.no_grad(), self.scope():
            return torch.stack([torch.as_tensor(call()).double() for call in self.calls])


def packs() -> bool:
    """Whether oneDNN computes in bfloat16 on this CPU; without AVX-512, for example, it does not."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed_calls(x: torch.Tensor, weights: list[torch.Tensor]) -> list[Callable[[], object]]:
    """What torch.compile calls for a frozen weight: oneDNN with a weight that lies as oneDNN reads it."""
    ops = torch.ops.mkldnn
    found: list[Callable[[], object]] = []
    for weight in weights:
        packed = ops._reorder_linear_weight(weight, len(x))
        found.append(functools.partial(ops._linear_pointwise, x, packed, None, "none", [], ""))
    return found


def inputs(rows: int, weights: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.randn(rows, weights[0].shape[1]).to(torch.bfloat16)


def ways(
    x: torch.Tensor,
    weights: list[torch.nn.Parameter],
    low: list[torch.Tensor],
    rivals: dict[str, list[quantized.Product]],
) -> dict[str, Way]:
    def product(weight: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, weight)  # looked up at each call: convert puts another function there

    ours = [functools.partial(product, weight) for weight in weights]
    return {
        "hmp": Way(converted, ours),
        "hmp.autocast": Way(lambda: hmp.autocast("cpu"), ours),
        **{f"hmp, {title}": Way(in_8_bits(title), ours) for title in INT8},
        **{
            name: Way(nullcontext, [functools.partial(each, x.to(quantized.INPUT[name])) for each in found])
            for name, found in rivals.items()
        },
        **({PACKED: Way(nullcontext, packed_calls(x, low))} if packs() else {}),
        PLAIN: Way(nullcontext, [functools.partial(product, weight) for weight in low]),
        **{name: Way(nullcontext, [functools.partial(read, weight) for weight in low]) for name, read in READS.items()},
    }


OVER_BFLOAT16 = [Ratio("hmp, int8", "hmp"), Ratio("hmp, weight_int8", "hmp")]


def beside_others(names: Iterable[str]) -> list[Ratio]:
    return [Ratio(f"hmp, {title}", name) for name in names for title in quantized.LIKE.get(name, ())]


def errors(
    rows: int,
    weights: list[torch.nn.Parameter],
    low: list[torch.Tensor],
    rivals: dict[str, list[quantized.Product]],
) -> Comparison:
    """Relative, against float64 with the same weights and inputs."""
    x = inputs(rows, weights)
    exact = torch.stack([x.double() @ weight.detach().double().t() for weight in weights])
    all_ways = ways(x, weights, low, rivals)
    names = ["hmp", *(f"hmp, {title}" for title in INT8), *rivals]
    wrong = {name: relative_error(exact, all_ways[name].results()) for name in names}
    return Comparison(counted(rows, "row"), "", wrong, beside_others(rivals))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}"


@dataclass(frozen=True)
class Found:
    rows: int
    threads: int
    read: float  # GB/s, by the fastest way of reading
    speeds: dict[str, float]  # GB/s of the weight's bytes in bfloat16

    @property
    def what(self) -> str:
        return f"{counted(self.rows, 'row')}, {counted(self.threads, 'thread')}"

    def report_rows(self, side: int) -> list[Row]:
        start = f"linear {side} x {side}, {self.what}: "
        beside = f"{self.read:.3g} GB/s are read"
        return [
            *(
                Row(
                    f"{start}share of the read bandwidth, {name}",
                    speed / self.read,
                    "",
                    f"{speed:.3g} GB/s; {beside}",
                )
                for name, speed in self.speeds.items()
            ),
            Row(f"{start}read bandwidth", self.read, "GB/s"),
            *(
                Row(f"{start}{each.top} / {each.bottom}", self.speeds[each.bottom] / self.speeds[each.top], "x")
                for each in (*OVER_BFLOAT16, *beside_others(self.speeds))
            ),
        ]


def measured(effort: Effort) -> tuple[list[Found], list[Comparison]]:
    """Speeds, and errors, which do not depend on the threads."""
    torch.manual_seed(0)
    side = effort.side
    weights = [torch.nn.Parameter(torch.randn(side, side)) for _ in range(effort.weights)]
    low = [weight.detach().to(torch.bfloat16) for weight in weights]
    found = []
    for threads in effort.threads:
        torch.set_num_threads(threads)
        rivals = dict(quantized.products(weights))
        for rows in FEW_ROWS:
            all_ways = ways(inputs(rows, weights), weights, low, rivals)
            seconds = take_turns({name: way.visit for name, way in all_ways.items()}, effort.rounds, effort.seconds)
            speeds = {name: 2 * side * side / each / 1e9 for name, each in seconds.items()}
            read = max(speeds.pop(name) for name in READS)
            found.append(Found(rows, threads, read, speeds))
    return found, [errors(rows, weights, low, rivals) for rows in FEW_ROWS]


def of_many_rows(effort: Effort) -> tuple[list[Comparison], list[Comparison]]:
    """Microseconds of a layer that is four times as wide as its input, and errors."""
    weights = [torch.nn.Parameter(torch.randn(effort.side, effort.side // 4)) for _ in range(effort.weights)]
    low = [weight.detach().to(torch.bfloat16) for weight in weights]
    found = []
    for threads in effort.threads:
        torch.set_num_threads(threads)
        rivals = dict(quantized.products(weights))
        for rows in MANY_ROWS:
            all_ways = ways(inputs(rows, weights), weights, low, rivals)
            visits = {name: way.visit for name, way in all_ways.items() if name not in READS}
            seconds = take_turns(visits, effort.rounds, effort.seconds)
            ratios = [*OVER_BFLOAT16, *beside_others(rivals)]
            what = f"{counted(rows, 'row')}, {counted(threads, 'thread')}"
            found.append(Comparison(what, "us", {name: each * 1e6 for name, each in seconds.items()}, ratios))
    return found, [errors(rows, weights, low, rivals) for rows in MANY_ROWS]


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    found, wrong = measured(effort)
    many, wrong_of_many = of_many_rows(effort)
    side = effort.side
    names = list(found[0].speeds)
    lines = [
        [each.what, f"{each.read:.1f}", *(f"{speed:.1f} ({speed / each.read:.2f})" for speed in each.speeds.values())]
        for each in found
    ]
    packed = f' "{PACKED}" calls oneDNN with a weight that lies as oneDNN reads it.' if packs() else ""
    beside = [name for name in names if name in quantized.NAMES]
    others = f" Other packages in 8 bits: {'; '.join(beside)}." if beside else ""
    alike = (
        "\nEach package is compared with the list that rounds as it does: `weight_int8` leaves the input in bfloat16, and `int8` rounds it to 8 bits. OpenVINO rounds it in"
        " groups of 32, and is compared with both."
        if beside
        else ""
    )
    text = f"""\
`F.linear` under `torch.no_grad()` with weights of {side} x {side}; {effort.weights} weights are visited in turn, so that none stays in a cache of the CPU. The bytes of a
weight in bfloat16 over the time of its product, in GB/s, and in brackets as a share of the read bandwidth. That is the fastest of {len(READS)} ways to read the same
bytes ({", ".join(READS)}), in the same rounds.{packed} Weights [in 8 bits](int8.md) have half of these bytes, so that their share may be up to 2.{others}

{table(["", "read, GB/s", *names], lines)}

Many rows, by weights of {side} x {side // 4}, in microseconds:

{table_of_comparisons(many)}

The relative error of the results, by weights of {side} x {side}: against float64 with the same weights and the same inputs, which are in bfloat16.{alike}

{table_of_comparisons(wrong)}

The same by weights of {side} x {side // 4}:

{table_of_comparisons(wrong_of_many)}"""
    rows = [row for each in found for row in each.report_rows(side)]
    few_name, many_name = f"linear {side} x {side}", f"linear {side // 4} to {side}"
    of_groups = rows_of({many_name: many, f"error of {few_name}": wrong, f"error of {many_name}": wrong_of_many})
    return Report("Linear layers", [*rows, *of_groups], text)


if __name__ == "__main__":
    run(__doc__, measure)
