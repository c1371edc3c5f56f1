"""Runs of a step: counted, timed, each from the same state and random numbers, and compared with float32."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

import habana_mp._core as _core
from habana_mp._evidence.compare import under
from habana_mp._evidence.kept_state import KeptState, wait_for_device
from habana_mp._evidence.looking import no_autocast, numbers_of
from habana_mp._evidence.tune.journal import Journal
from habana_mp._policy.policy import Policy
from habana_mp._report.cast_report import CastReport
from habana_mp._report.data import Report
from habana_mp._report.form import report_of
from habana_mp._scope.disable_casts import disable_casts
from habana_mp._torch_private import DRAW

Step = Callable[[], Any]
Metric = Callable[[Any, Any], float]
_PROJECTIONS = 32
_SUMS = 4
# Of a timed run of inference: it calls the step again until its calls have taken this long, or it has, or there are so many.
_SECONDS, _MOST_SECONDS, _MOST_CALLS = 0.1, 0.3, 10


@dataclass(frozen=True)
class Run:
    """``memory`` is the peak of the accelerator in bytes, None where there is none."""

    error: float
    seconds: float
    memory: int | None


def relative_error(exact: Any, found: Any) -> float:
    """The size of the difference of all tensors and numbers as a part of the size of the exact ones (root of the sum of squares).

    Infinite where they are not the same many, or not finite.
    """
    a, b = _compared(exact), _compared(found)
    if [each.shape for each in a] != [each.shape for each in b]:
        return math.inf
    squares = sum((x.double() - y.double()).square().sum().item() for x, y in zip(a, b, strict=True))
    whole = sum(x.double().square().sum().item() for x in a)
    if not math.isfinite(squares) or whole <= 0:
        return 0.0 if squares == 0 else math.inf
    return float(math.sqrt(squares / whole))


def angle(exact: Any, found: Any) -> float:
    """1 minus the cosine of all numbers; infinite where they are not the same many."""
    a, b = (
        torch.cat([each.double().flatten() for each in _compared(some)] or [torch.zeros(0)]) for some in (exact, found)
    )
    return math.inf if a.shape != b.shape else 1 - functional.cosine_similarity(a, b, 0).item()


METRICS: dict[str, Metric] = {"results": relative_error, "gradients": angle}


def size_of(found: Any) -> float:
    return math.sqrt(sum(each.double().square().sum().item() for each in _compared(found)))


def _compared(found: Any) -> list[torch.Tensor]:
    """The numbers that dtypes change; where there are none, all."""
    every = [torch.view_as_real(each) if each.is_complex() else each for each in map(_resolved, numbers_of(found))]
    return [each for each in every if each.is_floating_point()] or every


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return dense.detach().resolve_conj()


class Runs:
    """Of one step, and of another one that checks. ``restore`` puts back what they have changed."""

    def __init__(self, step: Step, check: Step | None, metric: str | Metric, seed: int, journal: Journal) -> None:
        self._step, self._check, self._seed = step, check, seed
        self._metric = METRICS[metric] if isinstance(metric, str) else metric
        self._gradients = metric == "gradients"
        self.journal = journal
        self._kept = KeptState(*filter(None, (step, check)))
        self._exact: Any = None
        self._check_exact: Any = None
        self.count = 0
        self.calls = 0
        self.is_inference = False  # the step makes outputs and no gradients: it runs as it will be used
        self.begins: Callable[[], None] = lambda: None  # called before each run

    def restore(self) -> None:
        self._kept.restore()

    def reference(self) -> float:
        """In float32, also of the step that checks. The size of what the step returned."""
        self._exact = self._reference_of(self._step, "step")
        if math.isnan(self._returned(self._exact, self._exact)):
            raise ValueError(
                "the metric returns nan for the results in float32 and the same results: no policy can be within the budget"
            )
        if self._check is not None:
            self._check_exact = self._reference_of(self._check, "check")
        size = size_of(self._exact)
        self.journal.check_sums(_sums(self._exact))
        return size

    def _reference_of(self, step: Step, name: str) -> Any:
        with no_autocast(name, "tune"):
            exact, _ = self._ran(step, None)
        if not numbers_of(exact):
            what = (
                "leaves no gradients: call backward() in it"
                if self._gradients
                else "returns no numbers: return its outputs or its loss"
            )
            raise ValueError(f"the {name} {what}")
        if not math.isfinite(size_of(exact)):
            raise ValueError(
                f"the {name} returns numbers that are not finite in float32. To find the op, call find_nonfinite({name})"
            )
        return exact

    @property
    def numbers(self) -> int:
        """How many numbers the step returns, or leaves as gradients."""
        return sum(each.numel() for each in numbers_of(self._exact))

    def run(self, policy: Policy | None, *, timed: bool = False) -> Run:
        """``timed``: a short step of inference is called several times, for its time."""

        def run() -> list[Any]:
            found, seconds = self._ran(self._step, policy, timed=timed)
            peak = torch.accelerator.max_memory_allocated() if torch.accelerator.is_available() else None
            return [self._error(self._exact, found), seconds, peak]

        values = self.journal.kept(str(policy), run, self._counted)
        return Run(*values)

    def check(self, policy: Policy) -> float | None:
        """The error of the other step, which no choice is made by; None without one."""
        if self._check is None:
            return None
        return self._error(self._check_exact, self._ran(self._check, policy)[0])

    def _error(self, exact: Any, found: Any) -> float:
        error = self._returned(exact, found)
        return math.inf if math.isnan(error) else error

    def _returned(self, exact: Any, found: Any) -> float:
        returned = self._metric(exact, found)
        try:
            return float(returned)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"the metric must return one number, not {returned!r:.80}") from None

    def report(self, policy: Policy, *, values: bool, formats: Sequence[str] = ()) -> tuple[Report, bool]:
        """A report of the step, which runs once, and whether the step called backward. With values, frozen weights get gradients, unless no backward
        pass of the outputs comes to its end, as of cuDNN's recurrent layers in eval mode: then the step runs once more, and no gradient is asked for.
        """

        def run(gradients: bool = values) -> dict[str, Any]:
            raised = False
            with (
                self._state(policy, gradients=gradients),
                CastReport(values, own_thread=True, formats=formats) as report,
            ):
                outputs = self._called(self._step)[0]
                backward = report._data().backward_seconds > 0
                if (
                    gradients
                    and not backward
                    and any(each.requires_grad and each.is_floating_point() for each in numbers_of(outputs))
                ):
                    try:
                        report.project(outputs, _PROJECTIONS)
                    except torch.OutOfMemoryError:
                        raise
                    except RuntimeError:  # of a kernel, or of what the user has written
                        raised = True
            if raised:
                return run(gradients=False)
            if values:
                _core.clear_cache()  # graphs have asked for plain copies of weights, and inference packs those of no such weight
            return {**report.to_dict(), "calls_backward": backward}

        kind = " ".join(["values" if values else "report", *formats])
        found = dict(self.journal.kept(f"{kind} {policy}", run, self._counted))
        backward = bool(found.pop("calls_backward"))
        return report_of(found), backward

    def _ran(self, step: Step, policy: Policy | None, *, timed: bool = False) -> tuple[Any, float]:
        """What the first call returns, and the seconds of the best one. In inference the calls that make copies of weights are not timed,
        unless all do: the copies are used as long as the model runs.
        """
        with self._state(policy) as watching:
            if torch.accelerator.is_available():
                torch.accelerator.reset_peak_memory_stats()
            if timed:
                _core.clear_cache()  # as in a program that runs under this policy alone
            before = _casts_of_weights()
            found, seconds = self._called(step)
            if self._gradients:
                found = self._kept.gradients()
            # What a later run may write to stays as it is.
            own = DRAW.map_tensors(torch.Tensor, lambda tensor: tensor.detach().clone(), found)
            wait_for_device()  # while what is copied is held: its stream may write to memory that is freed
            del found
            if self.is_inference and (timed or _casts_of_weights() > before):
                watching.close()  # what the step calls is noted by now
                seconds = self._again(step, _MOST_CALLS if timed else 1)
            return own, seconds

    def _again(self, step: Step, most: int) -> float:
        times: list[float] = []
        began = time.perf_counter()
        while not times or (
            len(times) < most and sum(times) < _SECONDS and time.perf_counter() - began < _MOST_SECONDS
        ):
            self._begin(by_version=True)
            times.append(self._called(step)[1])
        return min(times)

    def _called(self, step: Step) -> tuple[Any, float]:
        self.calls += 1
        began = time.perf_counter()
        found = step()
        wait_for_device()
        return found, time.perf_counter() - began

    @contextmanager
    def _state(self, policy: Policy | None, *, gradients: bool = False) -> Iterator[ExitStack]:
        """Yields what watches the modules that are called, to be closed where that would take time."""
        self._counted()
        with ExitStack() as stack:
            self._begin()
            if gradients:
                self._kept.want_gradients()
            watching = stack.enter_context(ExitStack())
            watching.enter_context(self._kept.watching())
            if self.is_inference:
                stack.enter_context(torch.no_grad())
            else:
                with disable_casts():  # its end ends the copies of weights, as each step of an optimizer does
                    pass
            stack.enter_context(under(policy))
            yield watching

    def _begin(self, *, by_version: bool = False) -> None:
        self._kept.restore(by_version=by_version)
        if self._gradients:
            self._kept.clear_gradients()
        torch.manual_seed(self._seed)

    def _counted(self) -> None:
        self.begins()
        self.count += 1


def _sums(found: Any) -> list[float]:
    """The size, and random sums as large as it: what tells results of one step from those of another."""
    drawn = torch.Generator().manual_seed(0)
    own = [each.double().cpu() for each in _compared(found)]

    def one() -> float:
        return sum(float((each * torch.randn(each.shape, generator=drawn, dtype=each.dtype)).sum()) for each in own)

    return [size_of(found), *(one() for _ in range(_SUMS))]


def _casts_of_weights() -> int:
    found = _core.cache_info()
    return int(found["misses"]) + int(found["refreshed"])
