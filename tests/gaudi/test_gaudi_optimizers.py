"""Habana's optimizers by torch's own, and what every optimizer must do (F218, F219)."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from optimizer_steps import close, give_gradients, parameters, train
from torch import nn

from habana_mp import hmp
from habana_mp._gaudi.hpex.optimizers import FusedAdagrad, FusedAdamW, FusedLamb, FusedSGD

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


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


# --- FSDP2

SHARDED = """
    import os, sys
    import habana_mp.gaudi
    import torch
    from torch import distributed, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
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
