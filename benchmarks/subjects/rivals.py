"""Other ways to choose which ops stay in float32, from the papers and documents of their tools, as baselines for tuner.py.

Each is given the step, the ops and the budget, and asks for measured errors by ``Trial.error``, which counts the runs. It returns the ops in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from habana_mp import hmp


@dataclass
class Trial:
    """``step`` returns outputs; ``ops`` are those that are decided, in the order of the calls, ``numbers`` how many each computes."""

    step: Callable[[], torch.Tensor]
    ops: list[str]
    numbers: dict[str, int]
    budget: float
    runs: int = 0

    def __post_init__(self) -> None:
        with torch.no_grad():
            self._exact = self.step().double()

    def policy(self, in_float32: set[str]) -> hmp.Policy:
        return hmp.Policy.load("hmp").with_edits(
            *(f"+{op}:{'fp32' if op in in_float32 else 'lower'}" for op in self.ops)
        )

    def error(self, in_float32: set[str]) -> float:
        self.runs += 1
        with torch.no_grad(), hmp.autocast("cpu", policy=self.policy(in_float32)):
            found = self.step().double()
        error = ((found - self._exact).norm() / self._exact.norm()).item()
        return error if error == error else float("inf")  # noqa: PLR0124 - NaN

    def shortest(self, order: list[str]) -> set[str]:
        """The shortest beginning of an order that is within the budget, by bisection."""
        few, enough = 0, len(order)
        while few < enough:
            middle = (few + enough) // 2
            few, enough = (few, middle) if self.error({*order[:middle]}) <= self.budget else (middle + 1, enough)
        return {*order[:enough]}


def prefix(trial: Trial) -> set[str]:
    """Polygraphy's `debug precision --mode bisect`: the first ops of the network, as many as have to be, stay in the higher precision."""
    return trial.shortest(trial.ops)


def greedy(trial: Trial) -> set[str]:
    """NNCF's quantization with accuracy control: the ops are ranked by what each alone wins, and go back one after the other until the budget is kept."""
    before = trial.error(set())
    won = {op: before - trial.error({op}) for op in trial.ops}
    chosen: set[str] = set()
    for op in sorted(trial.ops, key=lambda op: -won[op]):
        if before <= trial.budget:
            break
        chosen.add(op)
        before = trial.error(chosen)
    return chosen


def groups(trial: Trial) -> set[str]:
    """AIMET's automatic mixed precision: the error of each group alone in the low dtype, then a Pareto list from high to low by error for cost."""
    alone = {op: trial.error({*trial.ops} - {op}) for op in trial.ops}
    order = sorted(trial.ops, key=lambda op: alone[op] / trial.numbers[op])
    kept = {*trial.ops}
    for op in order:
        if trial.error(kept - {op}) > trial.budget:
            break
        kept -= {op}
    return kept


def magnitudes(trial: Trial) -> set[str]:
    """ModelOpt's AutoCast: ops whose inputs or results are larger than a limit (data_max, 512 by default) stay in the high precision."""
    trial.runs += 1
    largest: dict[str, float] = {}
    with torch.no_grad(), _Calls(lambda op, call: _largest(largest, op, call), trial.ops):
        trial.step()
    return {op for op in trial.ops if largest.get(op, 0.0) > 512}


def fisher(trial: Trial) -> set[str]:
    """Fisher scores, as of HAWQ's relatives: squared gradients at the results times squared rounding errors of these; then the shortest beginning."""
    trial.runs += 1
    results: list[tuple[str, torch.Tensor]] = []

    def keep(op: str, call: Any) -> None:
        if isinstance(call, torch.Tensor) and call.requires_grad and call.is_floating_point():
            call.retain_grad()
            results.append((op, call))

    with torch.enable_grad(), _Calls(keep, trial.ops):
        trial.step().double().square().sum().backward()
    scores = dict.fromkeys(trial.ops, 0.0)
    for op, result in results:
        if result.grad is not None:
            error = result.detach() - result.detach().bfloat16().float()
            scores[op] += (result.grad.square() * error.square()).sum().item()
    return trial.shortest(sorted(trial.ops, key=lambda op: -scores[op]))


RIVALS = {
    "bisection of a prefix (Polygraphy)": prefix,
    "greedy by impact (NNCF)": greedy,
    "groups, Pareto (AIMET)": groups,
    "magnitudes (ModelOpt)": magnitudes,
    "Fisher scores": fisher,
}


class _Calls(TorchFunctionMode):
    """Sees the results of torch's functions under the names that lists have."""

    def __init__(self, seen: Callable[[str, Any], None], ops: list[str]) -> None:
        super().__init__()
        self._seen, self._ops = seen, {*ops}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").strip("_")
        for op in _names(name):
            if op in self._ops:
                self._seen(op, result)
        return result


def _names(name: str) -> Iterator[str]:
    yield name
    if name in ("matmul", "add", "mul", "sub"):
        yield f"i{name}"
    if name == "iadd":
        yield "add"


def _largest(largest: dict[str, float], op: str, result: Any) -> None:
    if isinstance(result, torch.Tensor) and result.is_floating_point() and result.numel():
        largest[op] = max(largest.get(op, 0.0), result.abs().max().item())
