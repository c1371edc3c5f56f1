"""Models that choose by their numbers, and what they are off by in many batches."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

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
