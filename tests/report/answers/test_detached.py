"""Errors of what is detached count where the numbers are used; where they cannot be followed the report shows it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

BALANCED, HMP = hmp.Policy.load("balanced"), hmp.Policy.load("hmp")
SAID = "without some errors of what is detached"


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Nets(nn.Module):
    """A student and a teacher, whose errors are larger."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 16))
        self.teacher = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))
        self.teacher[3].weight.data *= 4
        self.predictor, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.critic = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1))

    def s(self, x):
        return self.student(x).float()

    def t(self, x):
        return self.teacher(x).float()

    def p(self, x):
        return self.predictor(x).float()


def alike(a, b):
    return -F.cosine_similarity(a, b, dim=-1).mean()


def stop_gradient(nets, x):
    """BYOL, SimSiam."""
    a, b = nets.t(x), nets.t(x * 1.1)
    return alike(nets.p(a), b.detach()) + alike(nets.p(b), a.detach())


def straight_through(nets, x):
    z = nets.s(x)
    q = 2 * z.tanh()
    return F.mse_loss(nets.p(z + (q - z).detach()), x[:, :16])


def codebook(nets, x):
    """The losses of a VQ-VAE."""
    z, q = nets.s(x), nets.t(x)
    through = nets.p(z + (q - z).detach())
    return F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach()) + F.mse_loss(through, x[:, :16])


def target_in_no_grad(nets, x):
    made = nets.t(x)
    with torch.no_grad():
        target = torch.softmax(made, -1)
    return -(target * F.log_softmax(nets.s(x), -1)).sum(-1).mean()


def focal(nets, x):
    losses = F.cross_entropy(nets.s(x), x.argmax(-1) % 16, reduction="none")
    return ((1 - (-losses.detach()).exp()) ** 2 * losses).mean()


FOLLOWED = {
    "a teacher": lambda nets, x: F.mse_loss(nets.s(x), nets.t(x).detach()),
    "before float": lambda nets, x: F.mse_loss(nets.s(x), nets.teacher(x).detach().float()),
    "of a copy": lambda nets, x: F.mse_loss(nets.s(x), nets.t(x).clone().detach()),
    "twice": lambda nets, x: F.mse_loss(nets.s(x), (nets.t(x).detach() / 2).detach()),
    "one behind another": lambda nets, x: F.mse_loss(nets.s(x), nets.p(nets.t(x).detach()).detach()),
    "with a gradient too": lambda nets, x: F.mse_loss(nets.p(h := nets.t(x)), h.detach()),
    "softmax of it": lambda nets, x: (
        -(torch.softmax(nets.t(x).detach() / 2, -1) * F.log_softmax(nets.s(x), -1)).sum(-1).mean()
    ),
    "in no_grad": target_in_no_grad,
    "parts": lambda nets, x: F.mse_loss(nets.s(x)[:32], nets.t(x).detach()[32:]),
    "cat": lambda nets, x: torch.cat([nets.s(x), nets.t(x).detach()]).square().mean(),
    "a critic": lambda nets, x: nets.critic(nets.t(x).detach()).mean().float() - nets.critic(x[:, :16]).float().mean(),
    "a critic with a batch norm": lambda nets, x: nets.critic(nets.norm(nets.t(x).detach())).float().square().mean(),
    "stop-gradient": stop_gradient,
    "straight-through": straight_through,
    "codebook": codebook,
    "focal loss": focal,
}


def losses_of(loss_of, data, policy=None):
    nets, found = Nets(), []
    for x in data:
        with hmp.autocast("cpu", policy=policy or BALANCED, enabled=policy is not None):
            found.append(loss_of(nets, x).detach().double())
    return torch.stack(found)


def reported(loss_of, data, policy, scale=1.0):
    nets = Nets()
    with hmp.report(values=True) as report:
        for x in data:
            with hmp.autocast("cpu", policy=policy):
                loss = loss_of(nets, x)
            (loss if scale == 1 else loss * torch.tensor(scale)).backward()
    return report, nets


def data(batches=16):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(64, 20, generator=generator) for _ in range(batches)]


def measured(loss_of, policy):
    return (losses_of(loss_of, data(), policy) - losses_of(loss_of, data())).square().mean().sqrt().item()


@pytest.mark.parametrize("case", FOLLOWED)
def test_errors_of_what_is_detached_count(case):
    """Of a teacher 0.076 of the measured error was foretold, and no share of it."""
    loss_of = FOLLOWED[case]
    report, _ = reported(loss_of, data(), BALANCED)
    assert report.forecast(BALANCED) == pytest.approx(measured(loss_of, BALANCED), rel=0.45)
    assert not report.to_dict()["detached"]
    assert SAID not in str(report)


@pytest.mark.parametrize("case", ["a teacher", "with a gradient too", "stop-gradient", "codebook"])
def test_edits_of_what_is_detached(case):
    loss_of = FOLLOWED[case]
    report, _ = reported(loss_of, data(), HMP)
    for edits in ([], ["+linear:fp32"], ["+linear:fp32", "+mul:fp32"]):
        policy = HMP.with_edits(*edits)
        assert report.forecast(policy) == pytest.approx(measured(loss_of, policy), rel=0.5), edits


def test_it_is_as_without_detach():
    plain, _ = reported(FOLLOWED["a critic"], data(), HMP)
    other, _ = reported(
        lambda nets, x: nets.critic(nets.t(x)).mean().float() - nets.critic(x[:, :16]).float().mean(), data(), HMP
    )
    for edits in ([], ["+linear:fp32"], ["+layer_norm:fp32"], ["+linear:fp32", "+mul:fp32"]):
        policy = HMP.with_edits(*edits)
        assert plain.forecast(policy) == pytest.approx(other.forecast(policy), rel=0.02), edits


def test_outputs():
    def out(nets, x):
        return nets.critic(nets.t(x).detach())

    nets, found = Nets(), []
    with hmp.report(values=True) as report:
        for x in data(8):
            with hmp.autocast("cpu", policy=BALANCED):
                report.project(out(nets, x))
    with torch.no_grad():
        for x in data(8):
            plain = out(nets, x)
            with hmp.autocast("cpu", policy=BALANCED):
                found.append(((out(nets, x) - plain).norm() / plain.norm()).item())
    assert report.errors()["outputs"] == pytest.approx(sum(found) / 8, rel=0.4)


def test_errors_are_in_units_of_the_loss():
    loss_of = FOLLOWED["a teacher"]
    plain, scaled = (reported(loss_of, data(4), BALANCED, scale)[0] for scale in (1.0, 1024.0))
    assert scaled.forecast(BALANCED) == pytest.approx(plain.forecast(BALANCED), rel=1e-2)


def test_gradients_are_the_same():
    loss_of = FOLLOWED["codebook"]
    _, nets = reported(loss_of, data(2), BALANCED)
    plain = Nets()
    for x in data(2):
        with hmp.autocast("cpu", policy=BALANCED):
            loss = loss_of(plain, x)
        loss.backward()
    for own, other in zip(nets.parameters(), plain.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None)
        assert own.grad is None or torch.equal(own.grad, other.grad)


def test_a_generator_and_its_critic():
    """The pass of the critic's loss leaves the graph of the generator, which has one of its own."""
    nets, errors = Nets(), {}
    with hmp.report(values=True) as report:
        for x in data():
            with hmp.autocast("cpu", policy=BALANCED):
                made = nets.t(x)
                critic = nets.critic(made.detach()).float().mean()
            critic.backward()
            with hmp.autocast("cpu", policy=BALANCED):
                generator = nets.critic(made).float().mean()
            generator.backward()
    errors = [*report.errors().values()]
    assert len(errors) == 2
    assert errors[0] == pytest.approx(errors[1], rel=0.05)


def gradient_penalty(nets, x):
    made = (x[:, :16] + nets.t(x).detach()).requires_grad_()
    (gradient,) = torch.autograd.grad(nets.critic(made).sum(), made, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean() + nets.critic(nets.t(x).detach()).float().mean()


def written_later(nets, x):
    """The pass of ours raises, and that of the loss does not."""
    weight = torch.ones(16)
    target = nets.t(x).detach() * weight
    weight += 1
    return F.mse_loss(nets.s(x), target)


def graph_is_gone(nets, x):
    made = nets.t(x)
    made.mean().backward()
    return F.mse_loss(nets.s(x), made.detach())


# What is not followed, as the report shows.
NOT_FOLLOWED = {
    "behind a function of autograd": lambda nets, x: F.mse_loss(nets.s(x), Function.apply(nets.t(x).detach())),
    "before it a function of autograd": lambda nets, x: F.mse_loss(nets.s(x), Function.apply(nets.t(x)).detach()),
    "written to": lambda nets, x: F.mse_loss(nets.s(x), nets.t(x).detach().clone().mul_(2)),
    "float64": lambda nets, x: F.mse_loss(nets.s(x).double(), nets.t(x).detach().double()),
    "dropout": lambda nets, x: F.mse_loss(nets.s(x), F.dropout(nets.t(x).detach(), 0.1).float()),
    ".data": lambda nets, x: F.mse_loss(nets.s(x), nets.t(x).data * 2),
    "a gradient of a gradient": gradient_penalty,
    "written to later": written_later,
    "the graph is gone": graph_is_gone,
    "checkpoint": lambda nets, x: F.mse_loss(
        nets.s(x), torch.utils.checkpoint.checkpoint(nets.t, x, use_reentrant=False).detach()
    ),
}


@pytest.mark.parametrize("case", NOT_FOLLOWED)
def test_what_is_not_followed_is_shown(case):
    report, _ = reported(NOT_FOLLOWED[case], data(2), HMP)
    assert [each["passes"] for each in report.to_dict()["detached"]] == [2]
    assert SAID in " ".join(str(report).split())
    assert report.errors()


def test_it_is_shown_of_that_loss_alone():
    nets, x = Nets(), data(1)[0]
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=BALANCED):
        F.mse_loss(nets.s(x), nets.t(x)).backward()
        F.mse_loss(nets.s(x), nets.t(x).data * 2).backward()
        report.project(nets.s(x) * nets.t(x).data)
    second = [line for line in report.errors() if line != "outputs"][1]
    assert [each["loss"] for each in report.to_dict()["detached"]] == [second, None]
    assert " ".join(str(report).split()).count(SAID) == 2
    assert hmp.CastReport.merged([report, report]).to_dict()["detached"][0] == {"loss": second, "passes": 2}


def test_a_target_of_an_earlier_step_is_shown():
    nets, x = Nets(), data(1)[0]
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=BALANCED):
        target = nets.t(x).detach()
        for _ in range(3):
            F.mse_loss(nets.s(x), target).backward()
    assert [each["passes"] for each in report.to_dict()["detached"]] == [2]


class Mark:
    """In a graph, as long as that is there."""

    def __call__(self, gradient):
        return None


def test_few_graphs_wait_for_a_loss():
    nets, kept, made = Nets(), [], []
    with hmp.report(values=True):
        for x in data(40):
            with hmp.autocast("cpu", policy=BALANCED):
                hidden = nets.t(x)
            hidden.register_hook(mark := Mark())
            made.append(weakref.ref(mark))
            kept.append(hidden.detach())
        del hidden, mark
        gc.collect()
        assert sum(each() is not None for each in made) == 16
    gc.collect()
    assert not any(each() for each in made)


@pytest.mark.parametrize("ends", ["with a loss", "without one"])
def test_what_is_logged_keeps_no_graph(ends):
    nets, total, logged, made = Nets(), torch.zeros(()), [], []
    with hmp.report(values=True) as report:
        for x in data(4):
            with hmp.autocast("cpu", policy=BALANCED):
                hidden = nets.t(x)
                loss = F.mse_loss(nets.s(x), hidden)
            hidden.register_hook(mark := Mark())
            made.append(weakref.ref(mark))
            total += loss.detach()
            logged.append(loss.detach() if ends == "with a loss" else loss.item())
            if ends == "with a loss":
                loss.backward()
        del hidden, loss, mark
        gc.collect()
        if ends == "with a loss":
            assert [each() for each in made] == [None] * 4
    assert not report.to_dict()["detached"]
