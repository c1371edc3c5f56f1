"""Habana's optimizers, clip and kernels by torch's own, and LAMB by the paper (F215 to F219)."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from habana_mp import hmp
from habana_mp._gaudi.hpex.kernels import EmbeddingBag, EmbeddingBagPreProc
from habana_mp._gaudi.hpex.normalization import FusedClipNorm
from habana_mp._gaudi.hpex.optimizers import FusedAdagrad, FusedAdamW, FusedLamb, FusedSGD

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
SHAPES = [(4, 3), (5,), ()]


def parameters(dtype=F32, shapes=SHAPES):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]


def give_gradients(params, seed):
    torch.manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape).to(p.dtype)


def train(optimizer, params, steps=4):
    for step in range(steps):
        give_gradients(params, 1 + step)
        optimizer.step()
    return [p.detach().clone() for p in params]


def close(ours, theirs, **tolerance):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


# --- Torch's own under other names

SAME = {
    "sgd": (FusedSGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd-momentum": (FusedSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "sgd-nesterov": (FusedSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (FusedAdagrad, torch.optim.Adagrad, {}),
    "adagrad-all": (
        FusedAdagrad,
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.5, "eps": 1e-4},
    ),
    "adamw": (FusedAdamW, torch.optim.AdamW, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1}),
}


@pytest.mark.parametrize(("ours", "torch_s", "options"), SAME.values(), ids=SAME.keys())
def test_as_torch(ours, torch_s, options):
    one, other = parameters(), parameters()
    close(train(ours(one, **options), one), train(torch_s(other, foreach=False, **options), other))


def test_the_defaults_of_adamw():
    one, other = parameters(), parameters()
    theirs = torch.optim.AdamW(other, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, foreach=False)
    close(train(FusedAdamW(one), one), train(theirs, other))


def test_positional_arguments():
    params = parameters()
    group = FusedAdamW(params, 0.1, (0.8, 0.9), 1e-4, 0.3, False).param_groups[0]
    assert [group[name] for name in "lr betas eps weight_decay bias_correction".split()] == [
        0.1,
        (0.8, 0.9),
        1e-4,
        0.3,
        False,
    ]
    group = FusedLamb(params, 0.1, False, (0.8, 0.9), 1e-4, 0.3).param_groups[0]
    assert [group[name] for name in "lr bias_correction betas eps weight_decay".split()] == [
        0.1,
        False,
        (0.8, 0.9),
        1e-4,
        0.3,
    ]
    group = FusedSGD(params, 0.1, 0.9, 0.2, 0.3, False).param_groups[0]
    assert [group[name] for name in "lr momentum dampening weight_decay nesterov".split()] == [
        0.1,
        0.9,
        0.2,
        0.3,
        False,
    ]


def test_adamw_without_bias_correction():
    params = parameters()
    w, m, v = [p.detach().clone() for p in params], [0.0] * 3, [0.0] * 3
    optimizer = FusedAdamW(params, lr=0.1, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1, bias_correction=False)
    for step in range(4):
        give_gradients(params, 1 + step)
        for i, g in enumerate(p.grad for p in params):
            m[i] = 0.8 * m[i] + 0.2 * g
            v[i] = 0.9 * v[i] + 0.1 * g * g
            w[i] = w[i] - 0.1 * 0.1 * w[i] - 0.1 * m[i] / (v[i].sqrt() + 1e-4)
        optimizer.step()
    close([p.detach() for p in params], w)


def test_bias_correction_of_a_group():
    params = parameters()
    optimizer = FusedAdamW([{"params": params[:1]}, {"params": params[1:], "bias_correction": False}], lr=0.1)
    assert [group["bias_correction"] for group in optimizer.param_groups] == [True, False]
    optimizer.add_param_group({"params": parameters()[:1]})
    assert optimizer.param_groups[2]["bias_correction"] is True


def test_adamw_goes_on_from_a_state_of_torch_s():
    one, other = parameters(), parameters()
    theirs = torch.optim.AdamW(other, lr=0.1, fused=True)
    train(theirs, other)
    train(FusedAdamW(one, lr=0.1, eps=1e-8, weight_decay=0.01), one)
    ours = FusedAdamW(one)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    close(train(ours, one), train(theirs, other))


# --- LAMB, by arXiv 1904.00962 (v5), Algorithm 2, after a clip of the global norm


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
        ({"lr": -1.0}, "lr is a number from 0 on, not -1.0"),
        ({"eps": float("nan")}, "eps is a number from 0 on, not nan"),
        ({"weight_decay": -0.1}, "weight_decay is a number from 0 on"),
        ({"max_grad_norm": -1.0}, "max_grad_norm is a number from 0 on"),
        ({"betas": (0.9, 1.0)}, r"betas are two numbers from 0 on and below 1, not \(0.9, 1.0\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_lamb_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        FusedLamb(parameters(), **options)


# --- What every optimizer must do

ALL = {
    "sgd": lambda params: FusedSGD(params, lr=0.1, momentum=0.9),
    "adagrad": lambda params: FusedAdagrad(params, lr=0.1),
    "adamw": lambda params: FusedAdamW(params, lr=0.1),
    "adamw-uncorrected": lambda params: FusedAdamW(params, lr=0.1, bias_correction=False),
    "lamb": lambda params: FusedLamb(params, lr=0.1, max_grad_norm=0.5),
}
every = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())


@every
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_a_state_dict_goes_on_where_it_stopped(make, dtype):
    one, other = parameters(dtype), parameters(dtype)
    first = make(one)
    train(first, one, 3)
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    second = make(other)
    second.load_state_dict(torch.load(saved))
    with torch.no_grad():
        for p, q in zip(other, one, strict=True):
            p.copy_(q)
    assert all(map(torch.equal, train(first, one), train(second, other)))


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_moments_that_were_saved_low_are_loaded_wide(dtype):
    one = parameters(dtype)
    first, second = FusedLamb(one), FusedLamb(one)
    train(first, one, 1)
    saved = first.state_dict()
    for state in saved["state"].values():
        state["exp_avg"] = state["exp_avg"].bfloat16()
    second.load_state_dict(saved)
    assert {state["exp_avg"].dtype for state in second.state.values()} == {F32}
    train(second, one, 1)


@every
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_hooks_decide_what_is_loaded(make, dtype):
    """As in all optimizers of torch."""
    one, other = parameters(dtype), parameters(dtype)
    first, second, fresh = make(one), make(other), make(parameters(dtype))
    train(first, one, 1)
    second.register_load_state_dict_pre_hook(lambda _, state: {**state, "state": {}})
    second.load_state_dict(first.state_dict())
    assert not any("exp_avg" in state for state in second.state.values())
    fresh_params = [p for group in fresh.param_groups for p in group["params"]]
    if "adagrad" not in type(fresh).__name__.lower():  # it makes its state where it is made
        assert all(map(torch.equal, train(second, other, 1), train(fresh, fresh_params, 1)))


@every
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"])
def test_a_copy_does_the_same(make, copied):
    params = parameters()
    optimizer = make(params)
    train(optimizer, params, 2)
    twin = copied(optimizer)
    others = twin.param_groups[0]["params"]
    assert all(map(torch.equal, train(optimizer, params), train(twin, others)))


@every
def test_a_closure(make):
    params = parameters()
    optimizer = make(params)

    def closure():
        optimizer.zero_grad()
        loss = sum((p * p).sum() for p in params)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(5)]
    assert losses[-1] < losses[0]


@every
def test_hooks_are_called_once(make):
    params = parameters()
    calls = []
    make(parameters())
    optimizer = make(params)
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    train(optimizer, params, 3)
    assert len(calls) == 3


@pytest.mark.parametrize("make", [ALL[name] for name in ("adamw", "adamw-uncorrected", "lamb")])
def test_a_sparse_gradient_is_refused(make):
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = make(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradients"):
        optimizer.step()


@every
def test_the_same_under_convert(make):
    """No cast reaches into a step, in disable_casts or not; and the weight cache sees that the weights have changed."""
    one, other = parameters(shapes=[(4, 3), (4,)]), parameters(shapes=[(4, 3), (4,)])
    plain = make(one)
    expected = train(plain, one)
    optimizer = make(other)
    hmp.convert()
    x = torch.ones(2, 3)
    before = nn.functional.linear(x, *other)
    assert all(map(torch.equal, train(optimizer, other), expected))
    after = nn.functional.linear(x, *other)
    assert after.dtype == BF16
    assert not torch.equal(before, after)
    hmp.revert()
    torch.testing.assert_close(after.float(), nn.functional.linear(x, *other), rtol=0.05, atol=0.05)


def test_a_scheduler_and_a_scaler():
    params = parameters()
    optimizer = FusedLamb(params, lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, 1.0, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(sum((p * p).sum() for p in params)).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0625)
    assert optimizer.state[params[0]]["step"] == 1


# --- FusedClipNorm


@pytest.mark.parametrize("max_norm", [0.5, 100.0, 0.0], ids=["clips", "is far", "zero"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_clip_norm(max_norm, dtype):
    one, other = parameters(dtype), parameters(dtype)
    give_gradients(one, 1)
    give_gradients(other, 1)
    expected = nn.utils.clip_grad_norm_(other, max_norm)
    hmp.convert()
    message = FusedClipNorm(iter(one), max_norm).clip_norm(iter(one))
    hmp.revert()
    assert torch.equal(message, expected)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(one, other, strict=True))


def test_clip_norm_of_one_tensor():
    p = nn.Parameter(torch.ones(4))
    p.grad = torch.ones(4)
    assert FusedClipNorm(p, max_norm=1.0).clip_norm(p) == 2.0
    assert p.grad.norm() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("max_norm", [-1.0, float("nan")], ids=str)
def test_clip_norm_refuses(max_norm):
    with pytest.raises(ValueError, match=f"max_norm is a number from 0 on, not {max_norm}"):
        FusedClipNorm([], max_norm)


# --- EmbeddingBag


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("options", [{}, {"mode": "mean"}, {"mode": "max"}], ids=["sum", "mean", "max"])
def test_embedding_bag(dtype, options):
    torch.manual_seed(0)
    bag = EmbeddingBag(10, 3, **options)
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3], dtype=dtype), torch.tensor([0, 2, 2], dtype=dtype)
    found = bag(*EmbeddingBagPreProc()(indices, offsets))
    rows = [[1, 2], [], [4, 5, 4, 3]]
    fold = {"sum": lambda t: t.sum(0), "mean": lambda t: t.mean(0), "max": lambda t: t.amax(0)}[
        options.get("mode", "sum")
    ]
    expected = torch.stack([fold(bag.weight[row]) if row else torch.zeros(3) for row in rows])
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert bag.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [F32, torch.complex64, torch.bool], ids=str)
def test_indices_are_integers(dtype):
    with pytest.raises(TypeError, match=f"indices are integers, not {dtype}"):
        EmbeddingBagPreProc()(torch.zeros(2).to(dtype), torch.zeros(1, dtype=torch.int64))


# --- FSDP2

SHARDED = """
    import os, sys
    import torch
    from torch import distributed, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from habana_mp._gaudi import distributed as _
    from habana_mp._gaudi.hpex.normalization import FusedClipNorm
    from habana_mp._gaudi.hpex.optimizers import FusedAdagrad, FusedAdamW, FusedLamb, FusedSGD

    rank = int(sys.argv[1])
    distributed.init_process_group("hccl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for kind, options in (
        (FusedSGD, {"momentum": 0.9}), (FusedAdagrad, {}), (FusedAdamW, {}), (FusedAdamW, {"bias_correction": False}),
        (FusedLamb, {"max_grad_norm": 0.5}),
    ):
        torch.manual_seed(0)
        whole, sharded = (nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)) for _ in range(2))
        sharded.load_state_dict(whole.state_dict())
        fully_shard(sharded, mesh=mesh)
        x = torch.randn(4, 6)
        for model in (whole, sharded):
            optimizer = kind(model.parameters(), lr=0.1, **options)
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().sum().backward()
                FusedClipNorm(model.parameters(), 5.0).clip_norm(model.parameters())
                optimizer.step()
        for one, other in zip(whole.parameters(), sharded.parameters()):
            torch.testing.assert_close(other.full_tensor(), one)
    distributed.destroy_process_group()
"""


def test_sharded_parameters_are_trained_as_whole_ones(tmp_path):
    script = tmp_path / "sharded.py"
    script.write_text(textwrap.dedent(SHARDED))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path / "rendezvous"], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for process in ranks:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors
