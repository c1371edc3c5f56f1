"""Instruments leave the ops of other threads alone (D50): real threads train beside the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16


class Training:
    """A model that trains in bfloat16, with a running mean and a counter in plain tensors, one step at a time."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).train()
        with torch.no_grad():
            for number, each in enumerate(self.model.parameters()):
                each.copy_(torch.linspace(-1, 1, each.numel()).reshape(each.shape) + number / 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.5)
        self.mean, self.count = torch.zeros(8), torch.zeros(())
        self.inputs = torch.Generator().manual_seed(0)

    def step(self) -> None:
        x = torch.randn(4, 8, generator=self.inputs)
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.count += 1
        with torch.autocast("cpu", BF16):
            loss = self.model(x - self.mean).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> list[torch.Tensor]:
        return [*self.model.state_dict().values(), self.mean, self.count]


@contextmanager
def beside(training: Training) -> Iterator[Callable[[], None]]:
    """What is given runs one step of the training on its own thread, and waits until it has ended."""
    ask, done, stop = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    errors: list[BaseException] = []
    steps = 0

    def run() -> None:
        while ask.acquire() and not stop.is_set():
            try:
                training.step()
            except BaseException as error:
                errors.append(error)
            done.release()

    def one() -> None:
        nonlocal steps
        steps += 1
        ask.release()
        assert done.acquire(timeout=60)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield one
        plain = Training()
        for _ in range(steps):
            plain.step()
        assert not errors
        assert steps > 1
        for a, b in zip(plain.state(), training.state(), strict=True):
            assert torch.equal(a, b)
    finally:
        stop.set()
        ask.release()
        thread.join()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def looked_at(instrument: str, step: Callable[[], Any]) -> Any:
    match instrument:
        case "compare":
            return hmp.compare(step, None, "hmp")
        case "compare two steps":
            return hmp.compare(step, step)
        case "tune":
            return hmp.tune(step, 0.1, cost="numbers")
        case "find_nonfinite":
            return hmp.find_nonfinite(step)
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True if instrument == "values" else "errors") as report:
        step()
        step()
    return report


@pytest.mark.parametrize("instrument", ["compare", "compare two steps", "tune", "find_nonfinite", "values", "errors"])
def test_the_training_of_another_thread_goes_on_as_without(instrument: str) -> None:
    model, x, training = net(), torch.randn(4, 8), Training()
    with beside(training) as one:

        def step() -> torch.Tensor:
            found = model(x)
            one()
            loss = found.float().square().mean()
            loss.backward()
            one()
            return loss

        step()
        found = looked_at(instrument, step)
    ops = {
        "compare": lambda: {row.op for row in found.rows},
        "tune": lambda: {part.part.op for part in found.parts},
    }
    if instrument in ops:  # no op of the other thread, which casts to bfloat16 by itself
        assert not ops[instrument]() & {"batch_norm", "mul_"}


def test_a_run_sees_no_call_of_another_thread() -> None:
    model, x, training = net(), torch.randn(4, 8), Training()

    def step(one: Callable[[], None]) -> torch.Tensor:
        one()
        return model(x)

    with beside(training) as one:
        crowded = hmp.compare(lambda: step(one), None, "hmp")
    alone = hmp.compare(lambda: step(lambda: None), None, "hmp")
    assert crowded.calls == alone.calls
    assert crowded.rows == alone.rows


def test_modules_of_a_policy_are_not_put_on_what_another_thread_calls() -> None:
    model, other = net(), net()
    policy = hmp.Policy.load("hmp").with_edits("+linear in 0:fp32")
    dtypes: list[torch.dtype] = []

    def work() -> None:
        with hmp.autocast("cpu", policy="hmp"):
            dtypes.append(other(torch.randn(4, 8)).dtype)

    def step() -> torch.Tensor:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return model(torch.ones(4, 8))

    hooked = []
    other[0].register_forward_hook(lambda module, args, found: hooked.append(found.dtype))
    hmp.compare(step, None, policy)
    assert dtypes == [BF16, BF16]
    assert hooked == [BF16, BF16]


class Counting:
    """A model that keeps a running mean and a counter in plain tensors, which no ``state_dict`` has."""

    def __init__(self) -> None:
        self.layer = nn.Linear(8, 8)
        self.mean, self.count, self.calls = torch.zeros(8), torch.zeros((), dtype=torch.bfloat16), torch.zeros(3)
        self.seen: list[tuple[float, float]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.calls[1].add_(1.0)
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        torch.add(self.mean, 1, out=self.mean)
        found = torch.nn.functional.batch_norm(self.layer(x), self.mean, self.calls.new_ones(8), training=True)
        self.seen.append((self.count.item(), self.calls[1].item()))
        return found


@pytest.mark.parametrize("instrument", ["compare", "compare two steps", "find_nonfinite", "values", "errors"])
def test_tensors_in_no_module_change_as_often_as_the_step_runs(instrument: str) -> None:
    def counted(run: Callable[[Counting], Any]) -> Counting:
        torch.manual_seed(0)
        model = Counting()
        run(model)
        return model

    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    looked = counted(lambda model: looked_at(instrument, lambda: model(x).sum().backward()))
    puts_back = instrument.startswith("compare")
    runs = 0 if puts_back else len(looked.seen)
    plain = counted(lambda model: [model(x).sum().backward() for _ in range(runs)])
    assert looked.seen == ([(1, 1)] * 2 if puts_back else plain.seen)
    assert torch.equal(plain.count, looked.count)
    assert torch.equal(plain.calls, looked.calls)
    # Policies change the batch norm's statistics by a rounding; a second run changes them by half.
    torch.testing.assert_close(plain.mean, looked.mean, rtol=0.02, atol=0.02)
