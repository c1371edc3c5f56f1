"""D44: what a training step does beside forward and backward runs without casts, by itself, under conversions and regions."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import lr_scheduler, swa_utils

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
X, Y = torch.linspace(-1, 1, 64).view(16, 4), torch.linspace(-2, 2, 16).view(16, 1)


class Own(torch.optim.Optimizer):
    """An optimizer of somebody else, which overrides step."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.0123})

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.sub_(p.grad * group["lr"])


class Further(torch.optim.SGD):
    """One that calls the step of its base."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.copy_(p * 0.999)
        return loss


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, foreach=False),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "Adam-foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01, foreach=False),
    "Rprop": lambda p: torch.optim.Rprop(p, foreach=False),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
    "own": Own,
    "own-of-torchs": lambda p: Further(p, 0.01),
}
HMP = {name: hmp.Policy.load(name) for name in ("hmp", "hmp-o1", "hmp-o2")}
LOW = hmp.Policy.from_ops(lower=["linear", "mm", "mul", "add", "dot", "div", "addmm", "matmul"], name="low")


def train(make, policy=None, region=None, *, late=False, scheduled=False):
    """Weights after some steps whose gradients are computed in float32, and the dtypes of the products in the closure."""
    torch.manual_seed(0)
    model, seen = nn.Linear(4, 1), []
    if policy is not None and not late:
        hmp.convert(policy=policy)
    optimizer = make(model.parameters())
    if scheduled:  # binds the step of the class to the instance
        lr_scheduler.ConstantLR(optimizer, factor=1.0)
    if policy is not None and late:
        hmp.convert(policy=policy)

    def closure():
        seen.append((X @ X.t()).dtype)
        with hmp.disable_casts():
            optimizer.zero_grad()
            loss = (model(X) - Y).square().mean()
            loss.backward()
        return loss.detach()

    with hmp.autocast("cpu", policy=region) if region is not None else contextlib.nullcontext():
        for _ in range(3):
            optimizer.step(closure)
    hmp.revert()
    return [p.detach() for p in model.parameters()], set(seen)


SCOPES = {
    **{name: {"policy": policy} for name, policy in HMP.items()},
    "low": {"policy": LOW},
    "converted-after-the-optimizer": {"policy": LOW, "late": True},
    "and-after-its-scheduler": {"policy": LOW, "late": True, "scheduled": True},
    "scheduled": {"policy": LOW, "scheduled": True},
    "region": {"region": LOW},
    "region-and-convert": {"region": LOW, "policy": HMP["hmp"]},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scope", SCOPES)
def test_steps_are_those_of_a_plain_program(scope: str, optimizer: str) -> None:
    plain, seen = train(OPTIMIZERS[optimizer])
    ours, ours_seen = train(OPTIMIZERS[optimizer], **SCOPES[scope])
    assert all(map(torch.equal, ours, plain))
    if optimizer != "own":  # which calls no closure
        assert (seen, ours_seen) == ({FP32}, {BF16})


def test_a_region_of_before_a_conversion() -> None:
    with hmp.autocast("cpu", policy=LOW):
        pass
    plain, _ = train(OPTIMIZERS["Adam"])
    ours, _ = train(OPTIMIZERS["Adam"], policy=LOW)
    assert all(map(torch.equal, ours, plain))


@pytest.mark.parametrize("times", [1, 2])
def test_revert_and_convert_again(times: int) -> None:
    plain, _ = train(OPTIMIZERS["SGD"])
    for _ in range(times):
        hmp.convert(policy="hmp")
        ours, seen = train(OPTIMIZERS["SGD"], policy=LOW)  # replaces the first
        assert all(map(torch.equal, ours, plain))
        assert seen == {BF16}
    ours, seen = train(OPTIMIZERS["SGD"])
    assert all(map(torch.equal, ours, plain))
    assert seen == {FP32}


@pytest.mark.parametrize("how", ["the closure raises", "the step raises", "the closure is passed by name"])
def test_casts_are_on_again_behind_the_step(how: str) -> None:
    hmp.convert(policy=LOW)
    seen = []

    def closure():
        seen.append((X @ X.t()).dtype)
        raise RuntimeError("closure")

    p = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([p], 0.1)
    if how == "the step raises":
        p.grad = torch.ones(4)
        p.grad = p.grad.to_sparse()
        optimizer = torch.optim.Adam([p])
    with contextlib.suppress(RuntimeError):
        if how == "the closure raises":
            optimizer.step(closure)
        else:
            optimizer.step(closure=closure if "name" in how else None)
    assert seen == ([] if how == "the step raises" else [BF16])
    assert (X @ X.t()).dtype == BF16


def test_inside_disable_casts_the_closure_is_not_cast_either() -> None:
    hmp.convert(policy=LOW)
    seen = []
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], 0.1)
    with hmp.disable_casts():
        optimizer.step(lambda: seen.append((X @ X.t()).dtype))
    assert seen == [FP32]


def test_copies_of_weights_outlive_a_step_that_does_not_change_them() -> None:
    hmp.convert(policy="hmp")
    hmp.cache.clear()
    linear = nn.Linear(128, 128)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], 0.1)
    seen = []

    def closure():
        linear(torch.ones(2, 128))
        seen.append(hmp.cache.info().entries)

    linear(torch.ones(2, 128))
    before = hmp.cache.info().misses
    optimizer.step(closure)
    assert (seen, hmp.cache.info().misses) == ([1], before)


def scaled(device_scale: float, fused: bool):
    p = nn.Parameter(torch.linspace(0.1, 1, 10))
    optimizer = torch.optim.Adam([p], 0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=device_scale)
    for _ in range(3):
        optimizer.zero_grad()
        with hmp.disable_casts():
            loss = p.square().sum() * 1.2345
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return p.detach()


def scheduled(make):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=torch.tensor(0.0123))
    scheduler = make(optimizer)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    return optimizer.param_groups[0]["lr"]


def averaged(**functions):
    model = nn.Linear(4, 4)
    average = swa_utils.AveragedModel(model, **functions)
    for seed in range(3):
        with torch.no_grad():
            model.weight.copy_(torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)))
        average.update_parameters(model)
    return average.module.weight.detach()


def clipped(foreach: bool):
    parameters = [nn.Parameter(torch.ones(50)) for _ in range(3)]
    for number, p in enumerate(parameters):
        p.grad = torch.linspace(-number, 1, 50)
    norm = nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)
    return torch.cat([norm.reshape(1), *(p.grad for p in parameters)])


OTHERS = {
    "GradScaler": lambda: scaled(2.0**8, False),
    "GradScaler-fused": lambda: scaled(2.0**16, True),
    "ExponentialLR": lambda: scheduled(lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    "CosineAnnealingLR": lambda: scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
    "CosineAnnealingWarmRestarts": lambda: scheduled(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10)),
    "SequentialLR": lambda: scheduled(
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2])
    ),
    "averages": averaged,
    "averages-foreach": lambda: averaged(multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
    "averages-own": lambda: averaged(avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new),
    "clip_grad_norm_": lambda: clipped(False),
    "clip_grad_norm_-foreach": lambda: clipped(True),
}


@pytest.mark.parametrize("policy", [*HMP, "float16"])
@pytest.mark.parametrize("case", OTHERS)
def test_the_rest_of_a_training_step(case: str, policy: str) -> None:
    torch.manual_seed(0)
    plain = OTHERS[case]()
    hmp.convert(policy=HMP["hmp"].with_low_dtype(torch.float16) if policy == "float16" else policy)
    torch.manual_seed(0)
    ours = OTHERS[case]()
    assert ours.dtype == FP32
    assert torch.equal(ours, plain)


@pytest.mark.parametrize("optimizer", ["own", "SGD"])
@pytest.mark.parametrize("policy", [None, "hmp"])
def test_a_compiled_step_has_no_more_graphs_and_no_casts(optimizer: str, policy: str | None) -> None:
    """torch breaks the graph in the step of its own optimizers; that of others is one graph."""
    torch._dynamo.reset()

    def run(backend):
        p = nn.Parameter(torch.linspace(0.1, 1, 10))
        made = OPTIMIZERS[optimizer]([p])
        step = torch.compile(made.step, fullgraph=optimizer == "own", backend=backend) if backend else made.step
        for _ in range(3):
            p.grad = torch.linspace(-1, 1, 10)
            step()
        return p.detach()

    plain = run(None)
    if policy:
        hmp.convert(policy=policy)
    counter = CompileCounterWithBackend("aot_eager")
    assert torch.equal(run(counter), plain)
    assert counter.frame_count == (1 if optimizer == "own" else 2)
    torch._dynamo.reset()


def test_copies_of_optimizers() -> None:
    hmp.convert(policy="hmp")
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(4))])
    other = copy.deepcopy(optimizer)
    assert type(other).step is type(optimizer).step
