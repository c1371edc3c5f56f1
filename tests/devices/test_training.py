"""Casts, a training step, what is seen of it, and what the weight cache does, on each device that has numbers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from habana_mp import hmp

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
BITS = {FP32: torch.int32, BF16: torch.int16, FP16: torch.int16}
EPS = 2.0**-8
VALUES = [
    0.0,
    -0.0,
    1.0,
    1 + EPS,
    1 + 3 * EPS,
    -3.1415927,
    65519.0,
    65520.0,
    1e-8,
    3e38,
    float("inf"),
    float("-inf"),
    float("nan"),
]
WIDTH = 128  # enough for the weight cache


def net(device):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)


def batch(device):
    return torch.randn(32, WIDTH, device=device), torch.randn(32, WIDTH, device=device)


def step(model, optimizer, x, target):
    loss = F.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@pytest.mark.parametrize(
    ("start", "end"), [*itertools.permutations((FP32, BF16, FP16), 2)], ids=lambda dtype: str(dtype).partition(".")[2]
)
def test_a_cast_has_the_bits_of_tensor_to(device, start, end):
    x = torch.tensor(VALUES * 500, device=device).to(start).requires_grad_()
    found, expected = hmp.cast(x, end), x.to(end)
    assert found.device == x.device
    number = ~expected.isnan()
    assert torch.equal(found[number].view(BITS[end]), expected[number].view(BITS[end]))
    assert torch.equal(found.isnan(), ~number)
    found.backward(torch.ones_like(found))
    assert x.grad.dtype == start


def test_a_cast_there_and_back_keeps_the_layout(device):
    x = torch.randn(4, 6, device=device).mT
    low = hmp.cast(x, BF16)
    assert low.stride() == x.stride()
    assert torch.equal(hmp.cast(low, FP32), x.to(BF16).to(FP32))
    out = torch.empty(6, 4, device=device, dtype=BF16)
    assert hmp.cast(x, BF16, out=out) is out
    assert torch.equal(out, low)


@pytest.mark.parametrize("policy", ["hmp", "balanced", "hpu-autocast"])
@pytest.mark.parametrize("front_end", ["convert", "region"])
def test_training_in_bfloat16(device, front_end, policy):
    """The loss falls as it does in float32; weights and gradients stay float32."""
    model, (x, target) = net(device), batch(device)
    exact = copy.deepcopy(model)
    losses = [step(exact, torch.optim.SGD(exact.parameters(), lr=0.5), x, target) for _ in range(10)]

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    region = hmp.autocast(device, BF16, policy=hmp.Policy.load(policy), enabled=front_end == "region")
    if front_end == "convert":
        hmp.convert(policy=policy)
    for expected in losses:
        with region:
            loss = F.mse_loss(model(x), target)
        assert loss.item() == pytest.approx(expected, rel=0.05)
        loss.backward()
        assert {p.grad.dtype for p in model.parameters()} == {FP32}
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.9 * losses[0]


NORMS = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b),
    "group_norm": lambda x, w, b: F.group_norm(x, 4, w, b),
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
}


# By policy: what the report says of layer_norm, group_norm and batch_norm, and the dtype of their results.
DECISIONS = {
    "hmp": [("lower", BF16)] * 3,
    "hmp-o2": [("rest fp32", FP32)] * 3,
    "balanced": [("fp32", FP32), ("fp32", FP32), ("left alone", BF16)],
    "torch-cuda": [("fp32", FP32), ("fp32", FP32), ("left alone", BF16)],
}
FELL_BACK = ("no kernel", FP32)


@pytest.mark.parametrize("policy", DECISIONS)
def test_norms_of_a_bfloat16_input_with_float32_weights(device, policy):
    """D14. A device that refuses such a mix runs the norm in float32, and the report says so (D42). The CPU takes it; of CUDA's
    kernels those of layer_norm and group_norm refuse it.
    """
    hmp.convert(policy=hmp.Policy.load(policy).with_low_dtype(BF16))
    for (name, norm), expected in zip(NORMS.items(), DECISIONS[policy]):
        x = torch.randn(16, WIDTH, device=device).to(BF16).requires_grad_()
        w, b = (torch.randn(WIDTH, device=device, requires_grad=True) for _ in range(2))
        with hmp.disable_casts():
            exact = norm(x.to(FP32), w, b)
        with hmp.report() as report:
            y = norm(x, w, b)
        torch.testing.assert_close(y.to(FP32), exact, rtol=0.02, atol=0.02)
        y.float().square().sum().backward()
        assert (x.grad.dtype, w.grad.dtype, b.grad.dtype) == (BF16, FP32, FP32)
        (row,) = (row for row in report.to_dict()["rows"] if row["op"] == name)
        refused = device != "cpu" and expected == ("lower", BF16) and name != "batch_norm"
        assert (row["decision"], y.dtype) == (FELL_BACK if refused else expected), name


@pytest.mark.parametrize("front_end", ["convert", "region"])
@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
def test_a_device_refuses_a_norm_once(device, name, front_end):
    """Each refusal is an exception, which takes longer than the norm (D42)."""
    w, b = (torch.randn(WIDTH, device=device) for _ in range(2))
    policies = (
        hmp.Policy.load("hmp"),
        hmp.Policy.from_ops(lower=["linear"]),
    )  # one lowers norms, one leaves them alone
    for low, policy in itertools.product((BF16, FP16), policies):
        policy = policy.with_low_dtype(low)
        if front_end == "convert":
            hmp.convert(policy=policy)
        x = torch.randn(16, WIDTH, device=device).to(low)
        with hmp.autocast(device, policy=policy, enabled=front_end == "region"):
            NORMS[name](x, w, b)
            with torch.profiler.profile() as profile, hmp.report() as report:
                y = NORMS[name](x, w, b)
            alone = NORMS[name](x, None, None)
        assert [event.name for event in profile.events()].count(f"aten::native_{name}") == 1
        assert alone.dtype == low  # nothing is mixed
        if device != "cpu":
            assert (y.dtype, [row.decision for row in report.rows if row.op == name]) == (FP32, ["no kernel"])


# What may be refused for another reason than the mix (D42).
ODD_NORMS = {
    "a low bias": lambda norm, x, w: norm(x, w, w.to(x.dtype)),
    "vmap": lambda norm, x, w: torch.vmap(lambda each: norm(each, w, w))(x.unsqueeze(0)),
}


@pytest.mark.parametrize("front_end", ["convert", "region"])
@pytest.mark.parametrize("odd", ODD_NORMS)
def test_an_odd_norm_changes_no_other(device, odd, front_end):
    policy = hmp.Policy.load("hmp")
    if front_end == "convert":
        hmp.convert(policy=policy)
    x, w = torch.randn(16, WIDTH, device=device).to(BF16), torch.ones(WIDTH, device=device)
    with hmp.autocast(device, policy=policy, enabled=front_end == "region"):
        before = NORMS["batch_norm"](x, w, w).dtype
        with contextlib.suppress(RuntimeError):
            ODD_NORMS[odd](NORMS["batch_norm"], x, w)
        assert NORMS["batch_norm"](x, w, w).dtype == before == BF16


def test_a_refusal_changes_no_trace(device):
    """A tracer sees what the rule wants, before a device has refused the norm and after (D42)."""
    x, w = torch.randn(16, WIDTH, device=device).to(BF16), torch.ones(WIDTH, device=device)
    hmp.convert()
    traced = []
    for _ in range(2):
        traced.append(make_fx(lambda x, w: NORMS["layer_norm"](x, w, w), tracing_mode="fake")(x, w).code)
        NORMS["layer_norm"](x, w, w)
    assert traced[0] == traced[1]


def test_compounds_are_reached(device):
    hmp.convert()
    x = torch.randn(8, 8, device=device)
    assert torch.einsum("ij,jk->ik", x, x).dtype == BF16


def test_a_scaler_skips_a_step_with_infinite_gradients(device):
    model, (x, target) = net(device), batch(device)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), hmp.GradScaler(device, init_scale=2.0**10)
    hmp.convert(low_precision_type=FP16)
    changed = []
    for factor in (1.0, float("inf"), 1.0):
        before = model[0].weight.detach().clone()
        loss = F.mse_loss(model(x), target) * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        changed.append(not torch.equal(before, model[0].weight))
    assert changed == [True, False, True]
    assert scaler.get_scale() == 2.0**9


def test_a_report_counts_casts_and_a_log_has_lines(device, capsys):
    model, (x, target) = (
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device),
        batch(device),
    )
    with hmp.report() as report:
        hmp.convert(isVerbose=True)
        F.mse_loss(model(x), target).backward()
    assert report.casts("linear", to="bfloat16") == 5  # x, two weights and two biases; the ReLU's result is low
    lines = [line for line in capsys.readouterr().out.splitlines() if "linear" in line]
    assert len(lines) == 2
    assert all(re.search(r"linear.* to_bf16", line) for line in lines)


def test_values_of_a_report(device):
    model, (x, target) = net(device), batch(device)
    hmp.convert(policy="balanced")
    with hmp.report(values=True) as report:
        F.mse_loss(model(x), target).backward()
    assert 0 < report.local_error("linear").relative < 0.01


def test_what_looks_at_numbers(device):
    """It runs on the device of the tensors."""
    model, (x, _) = net(device).eval(), batch(device)
    tuned = hmp.tune(lambda: model(x), budget=0.02)
    assert tuned.error <= 0.02
    assert hmp.compare(lambda: model(x), None, "balanced").first is not None
    assert hmp.find_nonfinite(lambda: model(x * float("inf"))).op is not None


class TestWeightCache:
    def test_one_cast_for_many_uses_and_one_for_each_change(self, device):
        """Changes that move the version counter, and those that do not."""
        hmp.convert()
        model, x = net(device), torch.randn(4, WIDTH, device=device)
        changes = {
            "none": lambda p: None,
            "in place": lambda p: p.detach().mul_(2),
            "data": lambda p: p.data.add_(1),
            "fused step": lambda p: torch.optim.SGD([p], lr=1.0, fused=True).step(),
        }
        found = {}
        for name, change in changes.items():
            p = model[0].weight
            p.grad = torch.ones_like(p)
            change(p)
            before = hmp.cache.info()
            with torch.inference_mode():
                first, again = F.linear(x, p), F.linear(x, p)
                with hmp.disable_casts():
                    expected = F.linear(x.to(BF16), p.to(BF16))
            assert torch.equal(first, expected), name
            assert torch.equal(again, expected), name
            found[name] = hmp.cache.info().misses + hmp.cache.info().refreshed - before.misses - before.refreshed
        assert found == dict.fromkeys(changes, 1)

    def test_offload_takes_weights_of_the_cpu_alone(self, cuda, tmp_path):
        large = nn.Linear(512, 512)
        with pytest.raises(ValueError, match="moves weights out of the CPU's memory; 'weight' is on cuda:0"):
            hmp.cache.offload(copy.deepcopy(large).to(cuda), tmp_path)
        both = nn.ModuleList([large, copy.deepcopy(large).to(cuda)])
        assert hmp.cache.offload(both, "/var/tmp").left == {"1.weight": "device"}
        hmp.cache.restore(both)
