"""Whole programs with the weight cache: the same bits as without it."""

import pytest
import torch
import torch.nn.functional as F
from cached_weight import ROW, N, X, casts, net, run
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize, prune, weight_norm
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


def agree(program, monkeypatch):
    """Whether a program gives the same bits with the cache, of which it makes use, as without."""
    expected = run(program, monkeypatch, cached=False)
    result = run(program, monkeypatch, cached=True)
    assert (hmp.cache.info().hits > 0) == (program is not tied_by_storage)
    assert all(torch.isfinite(value).all() for value in expected)
    return [torch.equal(a, b) for a, b in zip(result, expected, strict=True)] == [True] * len(expected)


def train(model, optimizer, forward=None):
    for _ in range(3):
        for _ in range(2):
            (forward or model)(torch.randn(4, N)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters(), model(X)]


def gan():
    generator, critic = net(), net()
    first = torch.optim.Adam(generator.parameters(), lr=0.01, fused=True)
    second = torch.optim.Adam(critic.parameters(), lr=0.01)
    for _ in range(3):
        second.zero_grad()
        (
            critic(torch.randn(4, N)).float().mean() - critic(generator(torch.randn(4, N)).detach()).float().mean()
        ).backward()
        second.step()
        first.zero_grad()
        critic(generator(torch.randn(4, N))).float().mean().backward()
        first.step()
    return [*generator.parameters(), *critic.parameters()]


class LowRank(nn.Module):
    """A frozen layer and a trained correction of low rank."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(N, N).requires_grad_(False)
        self.down, self.up = nn.Linear(N, 32, bias=False), nn.Linear(32, N, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def low_rank():
    model = LowRank()
    values = train(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1))
    with torch.no_grad():  # merged for inference, and taken apart again
        model.base.weight += model.up.weight @ model.down.weight
        values.append(model.base(X))
        model.base.weight -= model.up.weight @ model.down.weight
        return [*values, model.base(X)]


def tied():
    model = nn.Sequential(nn.Linear(N, N), nn.Tanh(), nn.Linear(N, N))
    model[2].weight = model[0].weight
    values = train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return [*values, model[0].weight.data.mul_(2), model(X)]


def tied_by_storage():
    model = nn.Sequential(nn.Linear(N, N), nn.Tanh(), nn.Linear(N, N))
    model[2].weight = nn.Parameter(model[0].weight.detach())
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def averaged(multi_avg):
    def program():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=multi_avg)
        values = []
        for _ in range(3):
            model(torch.randn(4, N)).float().square().mean().backward()
            optimizer.step()
            average.update_parameters(model)
            values += [average(X), average(X)]
        return values

    return program


def ema_swapped():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    shadow = [p.detach().clone() for p in model.parameters()]
    values = []
    for _ in range(3):
        model(torch.randn(4, N)).float().square().mean().backward()
        optimizer.step()
        torch._foreach_lerp_(shadow, [p.detach() for p in model.parameters()], 0.5)
        backup = [p.data for p in model.parameters()]
        for p, ema in zip(model.parameters(), shadow):
            p.data = ema
        values += [model(X), model(X)]
        for p, own in zip(model.parameters(), backup):
            p.data = own
        del backup, p, own
        values += [model(X), model(X)]
    return values


def functional():
    model = net()
    parameters = {name: nn.Parameter(torch.randn_like(p)) for name, p in model.named_parameters()}
    values = [model(X), functional_call(model, parameters, X), functional_call(model, parameters, X), model(X)]
    with torch.no_grad():
        parameters["0.weight"][ROW] = 3
    return [*values, functional_call(model, parameters, X)]


def through_transforms():
    model = net()
    parameters = dict(model.named_parameters())
    batch = torch.randn(3, 2, N)
    loss = lambda parameters, x: functional_call(model, parameters, x).float().square().mean()  # noqa: E731
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, batch)
    return [model(X), *each.values(), torch.func.vmap(model)(batch), model(X)]


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


def parametrized():
    model = net()
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    values = train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with parametrize.cached():
        values += [model(X), model(X)]
    parametrize.remove_parametrizations(model[0], "weight")
    return [*values, model(X), model(X)]


def pruned():
    model = net()
    values = [model(X)]
    prune.random_unstructured(model[0], "weight", amount=0.5)
    values += train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    prune.remove(model[0], "weight")
    return [*values, model(X), model(X)]


def reparametrized():
    model = net()
    weight_norm(model[0])
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def checkpointed(reentrant):
    def program():
        model = net()
        forward = lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)  # noqa: E731
        return train(model, torch.optim.Adam(model.parameters(), lr=0.1, fused=True), forward)

    return program


def clipped():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    for _ in range(3):
        model(torch.randn(4, N)).float().square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with hmp.disable_casts():
            optimizer.step()
        optimizer.zero_grad()
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.ones(()))
        for p in model.parameters():
            p.data.clamp_(-0.05, 0.05)
    return [*model.parameters(), model(X), model(X)]


def saved_on_cpu():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autograd.graph.save_on_cpu():
        return train(model, optimizer)


def optimizer_in_backward():
    model = net()
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1, fused=True)

        def update(p, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        model(torch.randn(4, N)).float().square().mean().backward()
    return [*model.parameters(), model(X), model(X)]


def adversarial():
    """An input that requires grad is a leaf as weights are, and changes at every step."""
    model = net().requires_grad_(False)
    x = torch.randn(64, N, requires_grad=True)
    for _ in range(3):
        model(x).float().square().mean().backward()
        with torch.no_grad():
            x += x.grad.sign()
            x.grad = None
    return [x, model(x), model(x)]


def double_backward():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, N, requires_grad=True)
        (grad,) = torch.autograd.grad(model(x).float().square().sum(), x, create_graph=True)
        grad.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters(), model(X), model(X)]


def recurrent():
    model = nn.LSTM(N, 32, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    values = []
    for _ in range(3):
        out, (h, c) = model(torch.randn(2, 3, N))
        (out.float().sum() + h.float().sum() + c.float().sum()).backward()
        values.append(out)
        optimizer.step()
        with torch.no_grad():
            values.append(F.linear(torch.randn(2, N), model.weight_ih_l0))
            values.append(F.linear(torch.randn(2, N), model.weight_ih_l0))
    return values


def encoder():
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 2, 128, 0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    values, x = [], torch.randn(2, 5, 64)
    for _ in range(2):
        model.train()(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode():
            values += [model.eval()(x), model(x)]
    return [*values, *model.parameters()]


PROGRAMS = {
    "sgd": lambda: train(model := net(), torch.optim.SGD(model.parameters(), lr=0.1)),
    "adam-fused": lambda: train(model := net(), torch.optim.Adam(model.parameters(), lr=0.1, fused=True)),
    "gan": gan,
    "low-rank": low_rank,
    "tied": tied,
    "tied-by-storage": tied_by_storage,
    "averaged": averaged(None),
    "averaged-ema": averaged(torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)),
    "ema-swapped": ema_swapped,
    "functional_call": functional,
    "transforms": through_transforms,
    "parametrized": parametrized,
    "pruned": pruned,
    "weight_norm": reparametrized,
    "checkpoint": checkpointed(False),
    "checkpoint-reentrant": checkpointed(True),
    "clipped": clipped,
    "save_on_cpu": saved_on_cpu,
    "optimizer-in-backward": optimizer_in_backward,
    "adversarial": adversarial,
    "double-backward": double_backward,
    "recurrent": recurrent,
    "encoder": encoder,
}


class TestAsWithoutIt:
    """Whole programs give the same bits with the cache as without."""

    @pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
    @pytest.mark.parametrize("program", PROGRAMS)
    def test_a_program(self, program, monkeypatch):
        assert agree(PROGRAMS[program], monkeypatch)

    @pytest.mark.usefixtures("plain_copies")  # reentrant checkpoints run the first forward without a graph
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointing_adds_no_cast(self, reentrant):
        hmp.convert()
        model = net()
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
        assert casts() == (2, 2)
