"""FusedLamb by the paper: arXiv 1904.00962 (v5), Algorithm 2, after a clip of the global norm (F218, F219)."""

from __future__ import annotations

import pytest
import torch
from optimizer_steps import close, give_gradients, parameters, train
from torch import nn

from habana_mp._gaudi.hpex.optimizers import FusedLamb

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64


def norm(tensors):
    return sum((t.double() ** 2).sum() for t in tensors) ** 0.5


def by_the_paper(
    weights, gradients, *, lr, bias_correction=True, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, max_grad_norm=1.0
):
    """Each line of the algorithm, in float64."""
    x = [w.double() for w in weights]
    m, v = [torch.zeros_like(w) for w in x], [torch.zeros_like(w) for w in x]
    for t, step in enumerate(gradients, start=1):
        clip = max(1.0, norm(step) / max_grad_norm) if max_grad_norm else 1.0
        for i, gradient in enumerate(step):
            g = gradient.double() / clip
            m[i] = betas[0] * m[i] + (1 - betas[0]) * g
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g**2
            m_hat = m[i] / (1 - betas[0] ** t) if bias_correction else m[i]
            v_hat = v[i] / (1 - betas[1] ** t) if bias_correction else v[i]
            r = m_hat / (v_hat.sqrt() + eps) + weight_decay * x[i]
            ratio = norm([x[i]]) / norm([r]) if norm([x[i]]) > 0 and norm([r]) > 0 else 1.0
            x[i] = x[i] - lr * ratio * r
    return x


LAMBS = {
    "defaults": {"lr": 1e-3},
    "large": {"lr": 0.1},
    "no-decay": {"lr": 0.1, "weight_decay": 0.0},
    "no-correction": {"lr": 0.1, "bias_correction": False},
    "no-clip": {"lr": 0.1, "max_grad_norm": None},
    "clip-at-0": {"lr": 0.1, "max_grad_norm": 0.0},
    "far-clip": {"lr": 0.1, "max_grad_norm": 100.0},
    "all": {"lr": 0.1, "betas": (0.7, 0.8), "eps": 1e-3, "weight_decay": 0.2, "max_grad_norm": 0.3},
}


def gradients_of(params, steps):
    found = []
    for step in range(steps):
        give_gradients(params, 1 + step)
        found.append([p.grad for p in params])
    return found


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("options", LAMBS.values(), ids=LAMBS.keys())
def test_lamb(options, dtype):
    params = parameters(dtype)
    expected = by_the_paper([p.detach() for p in params], gradients_of(params, 5), **options)
    tolerance = {F32: {"rtol": 1e-5, "atol": 1e-6}, F64: {"rtol": 1e-12, "atol": 1e-12}}[dtype]
    close(train(FusedLamb(params, **options), params, 5), [w.to(dtype) for w in expected], **tolerance)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_lamb_of_low_precision(dtype):
    """Moments are float32, so each step differs from the paper's by one rounding of the weights."""
    params = parameters(dtype)
    expected = by_the_paper([p.detach() for p in params], gradients_of(params, 5), lr=0.1)
    optimizer = FusedLamb(params, lr=0.1)
    trained = train(optimizer, params, 5)
    close(trained, [w.to(dtype) for w in expected], rtol=5 * torch.finfo(dtype).eps, atol=1e-2 * torch.finfo(dtype).eps)
    assert {state["exp_avg_sq"].dtype for state in optimizer.state.values()} == {F32}


@pytest.mark.parametrize("zero", ["weight", "gradient"])
def test_the_trust_ratio_is_1_where_a_norm_is_0(zero):
    weight = torch.zeros(3) if zero == "weight" else torch.ones(3)
    gradient = torch.zeros(3) if zero == "gradient" else torch.full((3,), 0.1)
    p = nn.Parameter(weight.clone())
    p.grad = gradient
    FusedLamb([p], lr=0.1, weight_decay=0.0).step()
    close([p.detach()], [w.float() for w in by_the_paper([weight], [[gradient]], lr=0.1, weight_decay=0.0)])
    assert torch.isfinite(p).all()


def test_the_norm_of_the_clip_is_that_of_all_groups():
    params = parameters()
    expected = by_the_paper([p.detach() for p in params], gradients_of(params, 1), lr=0.1, max_grad_norm=0.5)
    optimizer = FusedLamb([{"params": params[:1]}, {"params": params[1:]}], lr=0.1, max_grad_norm=0.5)
    close(train(optimizer, params, 1), [w.float() for w in expected])


def test_groups_have_options_of_their_own():
    params = parameters()
    gradients = gradients_of(params, 3)
    expected = [
        by_the_paper(
            [params[i].detach()], [[step[i]] for step in gradients], lr=lr, weight_decay=decay, max_grad_norm=0
        )[0]
        for i, (lr, decay) in enumerate([(0.1, 0.0), (0.01, 0.3), (0.01, 0.3)])
    ]
    groups = [{"params": params[:1], "lr": 0.1, "weight_decay": 0.0}, {"params": params[1:]}]
    optimizer = FusedLamb(groups, lr=0.01, weight_decay=0.3, max_grad_norm=0)
    close(train(optimizer, params, 3), [w.float() for w in expected])


def test_a_parameter_without_a_gradient_stays_and_counts_no_step():
    params = parameters()
    optimizer = FusedLamb(params, lr=0.1)
    for seed in range(3):
        give_gradients(params, seed)
        params[1].grad = None
        before = params[1].detach().clone()
        optimizer.step()
        assert torch.equal(params[1], before)
    assert [optimizer.state[p].get("step") for p in params] == [3, None, 3]
    optimizer.zero_grad()
    optimizer.step()
    assert [optimizer.state[p].get("step") for p in params] == [3, None, 3]


def test_gradients_stay_as_they_are():
    params = parameters()
    give_gradients(params, 1)
    before = [p.grad.clone() for p in params]
    FusedLamb(params, lr=0.1, max_grad_norm=0.1).step()
    assert all(map(torch.equal, [p.grad for p in params], before))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be a number, 0 or more, not -1.0"),
        ({"eps": float("nan")}, "eps must be a number, 0 or more, not nan"),
        ({"weight_decay": -0.1}, "weight_decay must be a number, 0 or more"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be a number, 0 or more"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers, 0 or more and below 1, not \(0.9, 1.0\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_lamb_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        FusedLamb(parameters(), **options)
