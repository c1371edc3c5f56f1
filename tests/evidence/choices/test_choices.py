"""Reports with values know what follows from ops that choose otherwise than in float32, with gradients on: experts, classes, codes.

Measured is the error of the same model in many batches; foretold is that of a report of a few.
"""

from __future__ import annotations

import gc
import json
import math
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

LOW = hmp.Policy.from_ops(lower=["linear", "softmax"])
NO_SOFTMAX = LOW.with_edits("+softmax:fp32")
EXPERTS, WIDTH, TOKENS = 8, 32, 256


class Experts(nn.Module):
    """A router and its experts. ``take`` has the probabilities and gives what each expert adds to each token."""

    def __init__(self, mix) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)
        self.head = nn.Linear(WIDTH, 8)
        self.mix = mix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.mix(self, x, self.gate(x).softmax(-1)))


def by_loop(self: Experts, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The rows of each expert, however many, are added where they belong, as older versions of transformers do."""
    values, chosen = scores.topk(2)
    values = values / values.sum(-1, keepdim=True)
    with torch.no_grad():
        mask = functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    found = torch.zeros_like(x)
    for number in range(EXPERTS):
        place, token = torch.where(mask[number])
        if token.numel():
            made = functional.silu(x[token] @ self.experts[number]) * values[token, place, None]
            found.index_add_(0, token, made.to(found.dtype))
    return found


def by_groups(self: Experts, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Sorted by expert, computed, and put back in their order."""
    values, chosen = scores.topk(2)
    experts, order = torch.sort(chosen.reshape(-1))
    made = functional.silu(torch.bmm(x[order // 2].unsqueeze(1), self.experts[experts]).squeeze(1))
    made = made * values.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel())
    return made[back].view(-1, 2, WIDTH).sum(1)


def by_weights(_self: Experts, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """All experts, each times a number that is 0 for most."""
    values, chosen = scores.topk(2)
    weights = torch.zeros_like(scores).scatter(-1, chosen, values)
    return torch.einsum("te,eij,ti->tj", weights, _self.experts, x)


def by_best(self: Experts, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """One expert, found by argmax, as a switch has it."""
    best = scores.argmax(-1)
    weight = scores.gather(-1, best.unsqueeze(-1))
    return torch.bmm(x.unsqueeze(1), self.experts[best]).squeeze(1) * weight


def by_codes(self: Experts, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The nearest code, as a VQ-VAE has it: its gradient goes past the choice."""
    codes = self.experts[:, 0]
    distances = x.square().sum(-1, keepdim=True) - 2 * functional.linear(x, codes) + codes.square().sum(-1)
    found = functional.embedding(distances.argmin(-1), codes)
    return scores.sum(-1, keepdim=True) * x + (found - x).detach()


MIXES = [by_loop, by_groups, by_weights, by_best, by_codes]


def batch(number: int) -> torch.Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(number))


def target(number: int) -> torch.Tensor:
    return torch.randint(0, 8, (TOKENS,), generator=torch.Generator().manual_seed(number))


def run(model: nn.Module, policy: hmp.Policy | None, number: int) -> torch.Tensor:
    with hmp.autocast("cpu", policy=policy, enabled=policy is not None):
        return model(batch(number)).float()


def measured(model: nn.Module, policy: hmp.Policy, *, of_loss: bool, batches: int = 48) -> float:
    squares, size = 0.0, 0.0
    for number in range(batches):
        low, exact = run(model, policy, number).detach(), run(model, None, number).detach()
        if of_loss:
            squares += (
                float(functional.cross_entropy(low, target(number)) - functional.cross_entropy(exact, target(number)))
                ** 2
            )
            size += 1
        else:
            squares, size = squares + float((low - exact).square().sum()), size + float(exact.square().sum())
    return math.sqrt(squares / size)


def outputs_report(model: nn.Module, policy: hmp.Policy, batches: int = 4) -> hmp.CastReport:
    with hmp.report(values=True) as report:
        for number in range(batches):
            report.project(run(model, policy, number), k=16, seed=number)
    return report


@pytest.mark.parametrize("mix", MIXES)
def test_the_error_of_outputs_has_what_follows_from_choices(mix):
    model = Experts(mix)
    report = outputs_report(model, LOW)
    for foretold, policy in ((report.errors()["outputs"], LOW), (report.forecast(NO_SOFTMAX), NO_SOFTMAX)):
        assert foretold == pytest.approx(measured(model, policy, of_loss=False), rel=0.35)


@pytest.mark.parametrize("mix", [by_loop, by_best])
def test_so_has_that_of_a_loss(mix):
    model = Experts(mix)
    with hmp.report(values=True) as report:
        for number in range(24):
            functional.cross_entropy(run(model, LOW, number), target(number)).backward()
    (error,) = report.errors().values()
    assert error == pytest.approx(measured(model, LOW, of_loss=True, batches=96), rel=0.4)


def test_a_report_names_how_many_choices_differ():
    model = Experts(by_loop)
    report = outputs_report(model, LOW)
    text = next(line for line in str(report).splitlines() if "topk in Experts" in line)
    foretold = int(text.split("about ")[1].split(" of ")[0])
    assert "of 1,024 choices differ from those of float32" in text
    found = 0
    for number in range(4):
        x = batch(number)
        compared = hmp.compare(lambda x=x: model(x), None, LOW)
        found += sum(row.flipped for row in compared.flips() if row.op == "topk")
    assert foretold / 2 <= found <= foretold * 2
    assert "may choose otherwise" not in str(report)


def test_the_first_edit_is_that_of_the_router():
    """Its softmax rounds the numbers that experts are chosen by, and makes hardly any other error."""
    edits = outputs_report(Experts(by_loop), LOW).edits()
    assert edits[0].text == "+softmax:fp32"
    assert edits[0].error_after < 0.8 * edits[0].error


def test_choices_are_in_files_and_add_up(tmp_path):
    model = Experts(by_loop)
    first, second = outputs_report(model, LOW, 2), outputs_report(model, LOW, 2)
    first.to_json(tmp_path / "report.json")
    loaded = hmp.CastReport.load(tmp_path / "report.json")
    assert loaded.errors() == first.errors()
    data, both = first.to_dict(), hmp.CastReport.merged([first, second]).to_dict()
    assert [each["choice"]["choices"] for each in data["losses"]] == [512]
    assert [each["choice"]["choices"] for each in both["losses"]] == [1024]
    assert sum(each["count"] for each in data["losses"][0]["choice"]["margins"]) == 512


@pytest.mark.parametrize("field", ["choices", "seen", "measured", "otherwise", "margins", "passes"])
def test_a_file_with_choices_of_nothing_is_read(field, tmp_path):
    data = outputs_report(Experts(by_loop), LOW, 1).to_dict()
    (loss,) = data["losses"]
    (loss if field == "passes" else loss["choice"])[field] = [] if field == "margins" else 0
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    report = hmp.CastReport.load(path)
    assert math.isfinite(report.errors()["outputs"])
    assert "topk" in str(report)


@pytest.fixture
def deterministic():
    """Two threads add up the gradients of x[places] in another order each time."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("mix", MIXES)
def test_looking_at_choices_changes_nothing(mix):
    """Gradients, random numbers, and how often hooks of modules run."""
    found = []
    for looks in (False, True):
        model, ran = Experts(mix), []
        model.head.weight.register_hook(lambda gradient, ran=ran: ran.append("weight") or gradient)
        torch.manual_seed(1)
        with hmp.report(values=looks):
            loss = functional.cross_entropy(run(model, LOW, 0), target(0))
            loss.backward()
        found.append([loss, torch.rand(4), *(each.grad for each in model.parameters()), torch.tensor(len(ran))])
    for plain, looked_at in zip(*found, strict=True):
        assert (plain is None) == (looked_at is None)
        assert plain is None or torch.equal(plain, looked_at)


class Doubled(torch.autograd.Function):
    ran = 0

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        Doubled.ran += 1
        return 2 * gradient


def with_gradient(model: Experts, x: torch.Tensor) -> torch.Tensor:
    return x + model.gate.bias.sum() * 0


def with_function(model: Experts, x: torch.Tensor) -> torch.Tensor:
    return Experts.forward(model, Doubled.apply(with_gradient(model, x)))


def with_module_hook(model: Experts, x: torch.Tensor) -> torch.Tensor:
    def count(*_: object) -> None:
        Doubled.ran += 1

    handle = model.gate.register_full_backward_hook(count)
    found = Experts.forward(model, with_gradient(model, x))
    handle.remove()
    return found


def with_tensor_hook(model: Experts, x: torch.Tensor) -> torch.Tensor:
    def count(_: torch.Tensor) -> None:
        Doubled.ran += 1

    x = with_gradient(model, x)
    x.register_hook(count)
    return Experts.forward(model, x)


def with_checkpoint(model: Experts, x: torch.Tensor) -> torch.Tensor:
    def forward(x: torch.Tensor) -> torch.Tensor:
        Doubled.ran += 1
        return Experts.forward(model, x)

    found = checkpoint(forward, x, use_reentrant=False)
    Doubled.ran -= 1
    return found


@pytest.mark.parametrize("forward", [with_function, with_module_hook, with_tensor_hook, with_checkpoint])
def test_code_of_the_user_runs_once_and_the_head_names_the_op(forward):
    """No backward pass of ours may run it. Then it is not known what follows from the choices, and the report says so."""
    model = Experts(by_loop)
    Doubled.ran = 0
    with hmp.report(values=True) as report:
        with hmp.autocast("cpu", policy=LOW):
            outputs = forward(model, batch(0))
        functional.cross_entropy(outputs.float(), target(0)).backward()
    assert Doubled.ran == 1
    assert "without what topk may choose otherwise" in str(report)


def test_a_checkpoint_before_a_choice_runs_again_in_the_backward_pass_of_the_user_alone():
    """A pass of ours through it raised an error inside of ``backward``."""
    below, router, values = nn.Linear(16, 32), nn.Linear(32, 8), nn.Parameter(torch.randn(8, 32))
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=LOW):
        h = checkpoint(below, torch.randn(64, 16), use_reentrant=False)
        scores, chosen = router(h).topk(2, -1)
        (values[chosen] * scores[..., None]).square().mean().backward()
    assert below.weight.grad is not None
    assert "without what topk may choose otherwise" in str(report)


class Keys(nn.Module):
    """A hard choice: nothing but places of rows comes from the product with the keys."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.keys, self.table = torch.randn(64, WIDTH), torch.randn(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(x))
        return self.head(h + self.table[torch.matmul(h, self.keys.t()).topk(2, -1).indices].mean(1))


def test_an_edit_of_what_decides_alone_is_advised():
    """It has no share of the error: no gradient comes to it."""
    model, policy = Keys(), hmp.Policy.from_ops(lower=["linear", "matmul"])
    report = outputs_report(model, policy, 8)
    first = report.edits()[0]
    assert first.text == "+matmul:fp32"
    assert first.error_after == pytest.approx(measured(model, policy.with_edits(first.text), of_loss=False), rel=0.35)
    assert "and more by what is chosen" in str(first)


class Balanced(Experts):
    """Something else reads the scores, too, in the low dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(-1)
        scores.mean(0)
        return self.head(x + self.mix(self, x, scores))


@pytest.mark.parametrize("kind", [Experts, Balanced])
def test_others_that_round_the_scores_do_not_choose(kind):
    policy = hmp.Policy.from_ops(lower=["linear", "softmax", "mean"])
    report = outputs_report(kind(by_weights), policy)
    wide = report.forecast(policy.with_edits("+softmax:fp32", "+linear:fp32"))
    assert wide < 0.02 * report.errors()["outputs"]


def by_max(self: Experts, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    weight, best = scores.max(-1, keepdim=True)
    return torch.bmm(x.unsqueeze(1), self.experts[best.squeeze(-1)]).squeeze(1) * weight


def test_the_largest_of_a_row_is_a_choice():
    model = Experts(by_max)
    assert outputs_report(model, LOW).errors()["outputs"] == pytest.approx(
        measured(model, LOW, of_loss=False), rel=0.35
    )


@pytest.mark.parametrize(
    "change",
    [lambda y: y * 100, lambda y: y.mul_(100), lambda y: y.detach().mul_(100), lambda y: y.contiguous().mul_(100)],
    ids=["another tensor", "in place", "in place, detached", "in place, contiguous"],
)
def test_a_cast_is_a_copy_in_the_runs_beside(change):
    """In float32 it would be none, and what is written to it would come to the loss."""
    scores = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(8, 8).triu().requires_grad_()
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mm"])):
        values, _ = torch.mm(scores, weight).topk(2)
        assert values.dtype == torch.bfloat16
        changed = change(values.float())
        (values.float().square().mean() + 0 * changed.sum()).backward()
    (worth,) = report.to_dict()["choices_worth"]
    assert worth["squares"] < 1e-3


def test_choices_that_were_not_followed_count_as_those_that_were():
    model = Experts(by_loop)
    with hmp.report(values=True) as report:
        for number in range(4):
            outputs = run(model, LOW, number)
            if number % 2:
                outputs = functional.dropout(outputs, 0.1)  # nothing is followed through it
            report.project(outputs, k=16, seed=number)
    (choice,) = (each["choice"] for each in report.to_dict()["losses"])
    assert (choice["choices"], choice["seen"]) == (2 * TOKENS, 4 * TOKENS)
    assert "of 1,024 choices differ" in " ".join(str(report).split())


def test_forward_passes_without_a_backward_one_keep_few_graphs():
    """What they keep is gone with the report at the latest."""
    model, kept, weight = Experts(by_loop), [], nn.Parameter(torch.ones(WIDTH))
    with hmp.report(values=True):
        for number in range(24):
            x = batch(number % 4)
            kept.append(weakref.ref(x))
            with hmp.autocast("cpu", policy=LOW):
                outputs = model(x * weight)  # it saves x
        del outputs, x
        assert sum(each() is not None for each in kept) <= 16
    gc.collect()
    assert sum(each() is not None for each in kept) == 0


def test_what_dropout_makes_of_choices_is_not_known():
    model = Experts(by_loop)
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=LOW):
        functional.dropout(model(batch(0)), 0.5).float().square().mean().backward()
    assert "without what topk may choose otherwise" in str(report)


def test_an_accuracy_costs_no_backward_pass():
    """Nothing depends on its argmax."""
    model = nn.Linear(WIDTH, 8)
    with hmp.report(values=True) as report:
        for number in range(2):
            logits = run(model, LOW, number)
            accuracy = (logits.argmax(-1) == target(number)).float().mean()
            functional.cross_entropy(logits, target(number)).backward()
    assert 0 <= float(accuracy) <= 1
    data = report.to_dict()
    assert [each["passes"] for each in data["losses"] if "choice" in each] == [0]
    assert data["choices_worth"] == []


def test_gradients_of_two_losses_of_one_step():
    """Each has what its choices are worth."""
    model = Experts(by_loop)
    with hmp.report(values=True) as report:
        for number in range(12):
            outputs = run(model, LOW, number)
            functional.cross_entropy(outputs, target(number)).backward(retain_graph=True)
            outputs.square().mean().backward()
    worth = report.to_dict()["choices_worth"]
    assert len(worth) == 2
    assert all(each["otherwise"] == 12 * (TOKENS // 32) for each in worth)
    assert len(report.errors()) == 2
